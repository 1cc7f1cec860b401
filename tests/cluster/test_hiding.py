"""Pods with cards carry what no node lists, by the policy and by the webhook, on a real API server.

Both hold for a whole cluster, so these two are not shared with other tests.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import pytest

from cluster.claims import claim, claiming, create_class, request
from cluster.cluster import COUNT, MEMORY, Cluster, Connection, container, pod
from cluster.dry_runs import as_user, bare, create
from cluster.kubernetes import FILLS_IN, MINOR
from control_plane import ControlPlane, free_port
from effort import seeds_for, times
from fakes.admission_cases import PAST_THE_LEDGER, WITHIN_THE_LEDGER
from fakes.sum_cases import random_pod
from gpuledger.configuration.dialects import admission_rules
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.webhook import filled_in
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.dialects.vocabulary import HIDING
from gpuledger.model.errors import BadInput, EventReason
from installation import NO_KUBELET, Installation

Json = dict[str, Any]

pytestmark = pytest.mark.promise("autoscalers")

RULES = admission_rules(Settings(overwrite_env=True))
PODS_AT_RANDOM = times(60, 2000)
DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "probe", "uid": "1", "controller": True}
SCHEDULERS = ("", "gpuledger", "another")
CLAIMS: Json = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}


class Hiding(NamedTuple):
    """A cluster in which one of the two hides pods."""

    how: str
    cluster: Cluster
    user: Connection


@pytest.fixture(scope="module", params=["policies", "webhook"])
def hiding(request: pytest.FixtureRequest) -> Iterator[Hiding]:
    if request.param == "policies" and not FILLS_IN:
        pytest.skip(f"policies of Kubernetes {MINOR} fill in no pods")
    with ControlPlane.run() as plane:
        certificate, key = map(str, plane.serving_files)
        port = free_port()
        settings: Json = {**NO_KUBELET, "overwrite_env": True}
        if request.param == "webhook":
            settings |= {"webhook_host": "127.0.0.1", "webhook_port": port}
            settings |= {"webhook_cert_file": certificate, "webhook_key_file": key}
        installation = Installation(plane, settings)
        installation.start()
        cluster, user = Cluster(plane, installation), as_user(plane, "user")
        arguments = ["admission-policies"]
        if request.param == "webhook":
            arguments = ["webhook-config", "--url", f"https://127.0.0.1:{port}", "--ca-file", certificate]
        command = [sys.executable, "-m", "gpuledger", *arguments, "--kind", "mutating"]
        command += ["--settings", str(installation.settings_file)]
        plane.kubectl("apply", "-f", "-", stdin=subprocess.check_output(command, text=True))
        cluster.wait(lambda: amounts(create(user, bare({COUNT: 1}))) == ["1"], "pods are hidden")
        yield Hiding(request.param, cluster, user)
        user.close()
        cluster.close()


def amounts(found: Json) -> list[str]:
    """Return the resource's amount of each container that has it, in limits as in requests."""
    every = [each["resources"] for each in found["spec"]["containers"]]
    limits, requests = ([(each.get(part) or {}).get(HIDING) for each in every] for part in ("limits", "requests"))
    assert limits == requests
    return [amount for amount in limits if amount is not None]


@pytest.mark.parametrize("seed", seeds_for("hiding", 2))
def test_any_pod_is_hidden_as_the_operator_reads_it(hiding: Hiding, seed: int) -> None:
    """The policy says in CEL what autoscalers.py says in Python."""
    choose, compared = random.Random(seed), 0  # noqa: S311 - no secret
    for number in range(PODS_AT_RANDOM):
        body = random_pod(number, choose)
        body["spec"]["schedulerName"] = choose.choice(SCHEDULERS)
        if choose.random() < 0.3:
            body["spec"] |= CLAIMS
        if choose.random() < 0.2:
            body["metadata"]["ownerReferences"] = [DAEMON_SET]
        try:
            pod_request(body, RULES.dialects)
        except BadInput:
            continue
        wanted = amounts(filled_in(body, RULES))
        assert amounts(create(hiding.user, deepcopy(body))) == wanted, body
        compared += bool(wanted)
    assert compared > PODS_AT_RANDOM // 6


def test_a_container_without_any_resources_can_carry_it(hiding: Hiding) -> None:
    body = pod("claims", container({}, "side"), container({COUNT: 1}), **CLAIMS)
    del body["spec"]["containers"][0]["resources"]
    assert amounts(create(hiding.user, body)) == ["1"]


def test_what_a_user_wrote_there_is_overwritten(hiding: Hiding) -> None:
    for written in (0, 5):
        assert amounts(create(hiding.user, bare({COUNT: 1, HIDING: written}))) == ["1"]


@pytest.mark.parametrize("spec", [*(spec for spec, _ in PAST_THE_LEDGER.values()), *WITHIN_THE_LEDGER.values()])
def test_containers_without_cards_get_a_variable_by_which_nvidias_runtime_gives_them_none(
    hiding: Hiding, spec: Json
) -> None:
    """Whatever they say themselves; the policy says in CEL what card_access.py says in Python."""
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": {**spec, "runtimeClassName": None}}
    found = create(hiding.user, deepcopy(body))["spec"]
    wanted = filled_in(body, RULES)["spec"]
    for field in ("containers", "initContainers"):
        for one, other in zip(found.get(field, ()), wanted.get(field, ()), strict=True):
            assert one.get("env", []) == other.get("env", [])
            values = [each.get("value") for each in one.get("env", []) if each["name"] == "NVIDIA_VISIBLE_DEVICES"]
            assert one["resources"].get("limits") or values in (["void"], ["none"])


def test_what_daemon_sets_make_keeps_its_variable(hiding: Hiding) -> None:
    spec, _ = PAST_THE_LEDGER["all cards"]
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "any", "ownerReferences": [DAEMON_SET]},
        "spec": spec,
    }
    (main,) = create(hiding.user, deepcopy(body))["spec"]["containers"]
    assert [each["value"] for each in main["env"] if each["name"] == "NVIDIA_VISIBLE_DEVICES"] == ["all"]
    assert filled_in(body, RULES)["spec"] == spec


def test_hidden_pods_are_bound_though_no_node_has_such_a_resource(hiding: Hiding) -> None:
    cluster = hiding.cluster
    cluster.add_nodes(1, gpus=8)
    create_class(cluster)
    cluster.request("POST", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", claim("one", request()))
    cluster.create(pod("whole", {COUNT: 5}), pod("share", {COUNT: 1, MEMORY: 4000}), claiming("claim", named=["one"]))
    for found in cluster.wait_bound("whole", "share", "claim"):
        assert amounts(found) == ["1"]
    for node in cluster.request("GET", "/api/v1/nodes")["items"]:
        assert HIDING not in node["status"]["allocatable"]
    events = cluster.request("GET", "/api/v1/namespaces/default/events")["items"]
    assert EventReason.WORDS_WITHOUT_EFFECT not in {event["reason"] for event in events}
