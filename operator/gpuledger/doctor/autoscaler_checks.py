"""Checks beside an autoscaler: whether it leaves alone what runs.

It does with a pod that asks for something that no node lists, and with a node that carries its annotation.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from gpuledger.doctor.cluster_checks import MUTATING_FROM
from gpuledger.doctor.facts import GROWTH, OVER_HAMI, Facts, Release, known, labels_of, name_of, some_of, time_of
from gpuledger.doctor.kinds import Finding, FindingKind
from gpuledger.formats.admission.autoscalers import HIDING_POLICY
from gpuledger.formats.admission.policies import ADMISSION_LABEL, EXEMPT_NAMESPACES, IGNORE_LABEL
from gpuledger.formats.dialects.request import containers
from gpuledger.formats.dialects.vocabulary import HIDING
from gpuledger.formats.kubernetes.kept_node import KEEPING, TRUE
from gpuledger.formats.kubernetes.pod import bound_node, is_being_deleted, is_of_daemon_set
from gpuledger.model.json_object import Json

RENEWED = timedelta(minutes=10)
"""A Lease that was not renewed for so long is of a program that is gone."""


def check_autoscalers(facts: Facts) -> Iterator[Finding]:
    """Yield what lets an autoscaler evict pods that hold cards: of new pods, and of those that run."""
    names = autoscalers(facts)
    if not names:
        return
    where, release = " and ".join(names), known(facts.release)
    if problem := _why_new_pods_are_seen(facts, release):
        yield Finding.of(FindingKind.AUTOSCALER_UNGUARDED, where, problem)
    if seen := _seen_pods(facts):
        namespaces = _without_admission(facts, release, {pod["metadata"]["namespace"] for pod in seen})
        off = f"; admission is off in {some_of(namespaces)}" if namespaces else "; they were there before admission was"
        shown = some_of([f"{pod['metadata']['namespace']}/{name_of(pod)}" for pod in seen])
        text = f"it may evict {len(seen)} pods that hold cards: {shown}{off}"
        yield Finding.of(FindingKind.AUTOSCALER_SEES_PODS, where, text)


def check_keeping_nodes(facts: Facts) -> Iterator[Finding]:
    """Yield whether the operator may not write the annotations, or create the pods, that the settings want."""
    access = known(facts.operator_access)
    if known(facts.release).has_stand_ins and GROWTH in access.denied:
        text = f"growth is stand-ins, and it may not {GROWTH}"
        yield Finding.of(FindingKind.GROWTH_PERMISSION, access.account, text)
    if known(facts.release).keep_nodes and OVER_HAMI in access.denied:
        text = f"keep_nodes_in_use is set, and it may not {OVER_HAMI}"
        yield Finding.of(FindingKind.KEEP_NODES_PERMISSION, access.account, text)


def autoscalers(facts: Facts) -> list[str]:
    """Return which autoscalers the cluster has. Some providers run theirs where nobody sees it."""
    lease = known(facts.cluster_autoscaler)
    renewed = time_of((lease.get("spec") or {}).get("renewTime")) if lease is not None else None
    runs = renewed is not None and known(facts.server_time) - renewed < RENEWED
    return [*(["Karpenter"] if known(facts.karpenter) is not None else []), *(["cluster-autoscaler"] if runs else [])]


def _why_new_pods_are_seen(facts: Facts, release: Release) -> str:
    if not release.hides_pods:
        return "" if release.keep_nodes else "hide_from_autoscalers is off in the settings, and so is keep_nodes_in_use"
    webhooks = {each["kind"] for each in known(facts.webhooks)}
    if ("MutatingAdmissionPolicy", HIDING_POLICY) in known(facts.policies):
        return ""
    if "MutatingWebhookConfiguration" in webhooks:
        return ""
    way = "policy" if known(facts.version) >= MUTATING_FROM else "webhook"
    return f"there is no {way} that writes {HIDING} on new pods"


def _seen_pods(facts: Facts) -> list[Json]:
    """Return the pods with cards that fit on a node in an autoscaler's eyes, and whose nodes may go."""
    held, nodes = known(facts.pods_held), {name_of(node): node for node in known(facts.nodes)}
    found = []
    for pod in known(facts.pods):
        node = nodes.get(bound_node(pod))
        if pod["metadata"].get("uid") not in held or node is None or is_being_deleted(pod) or is_of_daemon_set(pod):
            continue
        if not _is_kept(node) and _asked(pod) <= ((node.get("status") or {}).get("allocatable") or {}).keys():
            found.append(pod)
    return found


def _asked(pod: Json) -> set[str]:
    """Return the names of the resources that a pod asks for."""
    limits = [(each.get("resources") or {}).get("limits") or {} for each, _ in containers(pod)]
    return {name for each in limits for name in each if "/" in name}


def _is_kept(node: Json) -> bool:
    annotations = node["metadata"].get("annotations") or {}
    return all(annotations.get(name) == TRUE for name in KEEPING)


def _without_admission(facts: Facts, release: Release, names: set[str]) -> list[str]:
    """Return those of these namespaces whose pods are not filled in."""
    labels = {name_of(each): labels_of(each) for each in known(facts.namespaces)}
    return [
        name
        for name in sorted(names)
        if name in EXEMPT_NAMESPACES
        or labels.get(name, {}).get(IGNORE_LABEL) == TRUE
        or (release.only_labelled and labels.get(name, {}).get(ADMISSION_LABEL) != TRUE)
    ]
