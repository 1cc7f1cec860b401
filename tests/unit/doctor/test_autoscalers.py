"""Beside an autoscaler the doctor says which running pods it may evict, and what keeps new ones from being seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fakes.doctor_facts import NODE, a_gpu_node, healthy, stored_policies
from fakes.objects import GPU, MEMORY, a_pod_object
from gpuledger.configuration.node_templates import NewNodes
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.examination import CHECKS
from gpuledger.doctor.facts import GROWTH, OVER_HAMI, AccountAccess, Facts
from gpuledger.doctor.kinds import FindingKind
from gpuledger.formats.dialects.vocabulary import HIDING
from gpuledger.formats.kubernetes.kept_node import KEEPING

Json = dict[str, Any]

CRD = {"metadata": {"name": "nodepools.karpenter.sh"}}
WHOLE = a_pod_object("whole", {GPU: "5"}, node_name=NODE.name)
HIDDEN = a_pod_object("hidden", {GPU: "5", HIDING: "1"}, node_name=NODE.name)
SHARE = a_pod_object("share", {GPU: "1", MEMORY: "1000"}, node_name=NODE.name)
CLAIM = a_pod_object("claim", {}, node_name=NODE.name)
PODS = (WHOLE, HIDDEN, SHARE, CLAIM)
HELD = frozenset(pod["metadata"]["uid"] for pod in PODS)
SEES, UNGUARDED = FindingKind.AUTOSCALER_SEES_PODS, FindingKind.AUTOSCALER_UNGUARDED


def lease(renewed: str) -> Json:
    return {"metadata": {"name": "cluster-autoscaler"}, "spec": {"holderIdentity": "a", "renewTime": renewed}}


def beside_karpenter(chosen: Settings | None = None, **changes: Any) -> Facts:
    return healthy(chosen, **{"karpenter": CRD, "pods": PODS, "pods_held": HELD, **changes})


def found(facts: Facts, check: str = "autoscalers") -> dict[FindingKind, str]:
    return {each.kind: f"{each.where}: {each.text}" for each in CHECKS[check](facts)}


def test_without_an_autoscaler_nothing_is_said() -> None:
    assert found(beside_karpenter(karpenter=None)) == {}
    assert found(beside_karpenter(karpenter=None, cluster_autoscaler=lease("2030-01-01T10:00:00Z"))) == {}


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        ({}, "Karpenter"),
        ({"karpenter": None, "cluster_autoscaler": lease("2030-01-01T11:59:00Z")}, "cluster-autoscaler"),
        ({"cluster_autoscaler": lease("2030-01-01T11:59:00Z")}, "Karpenter and cluster-autoscaler"),
    ],
)
def test_pods_that_ask_for_nothing_but_what_their_node_lists_are_named(facts: Json, where: str) -> None:
    text = found(beside_karpenter(**facts))[SEES]
    assert text.startswith(f"{where}: it may evict 2 pods that hold cards: default/whole, default/claim")
    assert text.endswith("; they were there before admission was")


def test_pods_of_namespaces_without_admission_are_told_from_those_that_came_before_it() -> None:
    labelled = Settings(admission_namespaces="labelled")
    assert "; admission is off in default" in found(beside_karpenter(labelled))[SEES]
    on = [{"metadata": {"name": "default", "labels": {"gpuledger.dev/admission": "true"}}}]
    assert "before admission was" in found(beside_karpenter(labelled, namespaces=on))[SEES]
    ignored = [{"metadata": {"name": "default", "labels": {"gpuledger.dev/ignore": "true"}}}]
    assert "; admission is off in default" in found(beside_karpenter(namespaces=ignored))[SEES]


def test_pods_without_cards_of_daemon_sets_on_their_way_out_and_on_kept_nodes_are_not_named() -> None:
    assert found(beside_karpenter(pods_held=frozenset())) == {}
    owner = {"kind": "DaemonSet", "controller": True}
    of_daemon = {**WHOLE, "metadata": {**WHOLE["metadata"], "ownerReferences": [owner]}}
    leaving = {**WHOLE, "metadata": {**WHOLE["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}}
    for pod in (of_daemon, leaving):
        assert found(beside_karpenter(pods=[pod])) == {}
    kept = a_gpu_node(annotations=dict.fromkeys(KEEPING, "true"))
    assert found(beside_karpenter(nodes=[kept])) == {}


def test_what_is_to_hide_new_pods_has_to_be_there() -> None:
    facts = beside_karpenter(pods=[])
    assert found(facts) == {}
    assert found(replace(facts, policies={}))[UNGUARDED].endswith(
        "no policy that writes gpuledger.dev/managed on new pods"
    )
    before = replace(facts, policies={}, version=(1, 34))
    assert "no webhook that" in found(before)[UNGUARDED]
    assert found(replace(before, webhooks=[{"kind": "MutatingWebhookConfiguration"}])) == {}


def test_a_cluster_that_wants_neither_protection_is_told_so() -> None:
    off = Settings(hide_from_autoscalers=False)
    facts = beside_karpenter(off, pods=[])
    assert "hide_from_autoscalers is off in the settings, and so is keep_nodes_in_use" in found(facts)[UNGUARDED]
    assert found(beside_karpenter(replace(off, keep_nodes_in_use=True), pods=[])) == {}
    assert ("MutatingAdmissionPolicy", "gpuledger-hiding") not in stored_policies(off)


def test_the_permission_for_nodes_is_needed_with_the_setting_alone() -> None:
    denied = AccountAccess("operator", (OVER_HAMI,))
    assert found(healthy(operator_access=denied), "keeping-nodes") == {}
    kept = found(healthy(Settings(keep_nodes_in_use=True), operator_access=denied), "keeping-nodes")
    assert kept == {FindingKind.KEEP_NODES_PERMISSION: "operator: keep_nodes_in_use is set, and it may not patch nodes"}


def test_the_permission_for_stand_ins_is_needed_with_the_setting_alone() -> None:
    denied = AccountAccess("operator", (GROWTH,))
    assert found(healthy(operator_access=denied), "keeping-nodes") == {}
    template = NewNodes(name="a", labels={"pool": "gpus"})
    settings = Settings(growth="stand-ins", node_templates=(template,))
    [(kind, text)] = found(healthy(settings, operator_access=denied), "keeping-nodes").items()
    assert (kind, text.partition(", and ")[0]) == (FindingKind.GROWTH_PERMISSION, "operator: growth is stand-ins")
