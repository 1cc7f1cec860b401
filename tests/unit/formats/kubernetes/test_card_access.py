"""Ways of pods to cards without a share are found, those and no others, in the same words as the policy has."""

from typing import Any

import pytest

from fakes.admission_cases import PAST_THE_LEDGER, VISIBLE, WITHIN_THE_LEDGER
from fakes.objects import DIALECTS, GPU, a_pod_object
from gpuledger.formats.kubernetes.card_access import MOST_WAYS, overwrite, ways_past_the_ledger
from gpuledger.formats.kubernetes.pod import pod_facts

Json = dict[str, Any]


@pytest.mark.parametrize("way", PAST_THE_LEDGER)
def test_each_way_is_told(way: str) -> None:
    spec, sentence = PAST_THE_LEDGER[way]
    (found,) = ways_past_the_ledger({"spec": spec}, DIALECTS)
    assert found.text.replace("/dev;", "/dev/;").startswith(sentence.replace("//dev", "/dev").replace("run//", "run/"))


@pytest.mark.parametrize("case", WITHIN_THE_LEDGER)
def test_what_reaches_no_cards_is_no_way(case: str) -> None:
    assert ways_past_the_ledger({"spec": WITHIN_THE_LEDGER[case]}, DIALECTS) == ()


def test_a_claim_is_a_share_too() -> None:
    main = {"name": "main", "resources": {"claims": [{"name": "gpu"}]}}
    assert ways_past_the_ledger({"spec": {"runtimeClassName": "nvidia", "containers": [main]}}, DIALECTS) == ()


def test_a_container_that_was_added_later_counts() -> None:
    debug = {"name": "debug", "env": [{"name": VISIBLE, "value": "all"}]}
    (found,) = ways_past_the_ledger({"spec": {"containers": [], "ephemeralContainers": [debug]}}, DIALECTS)
    assert found.text.startswith("container debug sets")


def test_a_user_does_not_choose_how_much_is_told() -> None:
    main = {"name": "main", "env": [{"name": VISIBLE, "value": "all"}] * 10_000}
    assert len(ways_past_the_ledger({"spec": {"containers": [main]}}, DIALECTS)) == MOST_WAYS


def a_pod(limits: dict[str, str], fields: Json, maker: str = "") -> Json:
    pod = a_pod_object("any", limits, node_name="node-a")
    pod["spec"]["containers"][0] |= fields
    if maker:
        pod["metadata"]["ownerReferences"] = [{"kind": maker, "name": "any", "uid": "1", "controller": True}]
    return pod


VARIABLE: Json = {"env": [{"name": VISIBLE, "value": "all"}]}
PRIVILEGED: Json = {"securityContext": {"privileged": True}}


@pytest.mark.parametrize(
    ("pod", "is_told"),
    [
        (a_pod({GPU: "1"}, VARIABLE), True),
        (a_pod({GPU: "1"}, PRIVILEGED), True),
        (a_pod({GPU: "1"}, VARIABLE, "DaemonSet"), True),
        (a_pod({"cpu": "1"}, VARIABLE), True),
        (a_pod({"cpu": "1"}, VARIABLE, "ReplicaSet"), True),
        (a_pod({"cpu": "1"}, VARIABLE, "DaemonSet"), False),  # a node agent
        (a_pod({"cpu": "1"}, PRIVILEGED), False),  # for whatever else
    ],
)
def test_the_audit_is_told_of_pods_that_want_cards_and_not_of_the_clusters_own_programs(
    pod: Json, is_told: bool
) -> None:
    assert bool(pod_facts(pod, DIALECTS).past_ledger) is is_told


def test_containers_without_cards_lose_their_own_variable() -> None:
    shared = {"name": "shared", "resources": {"limits": {GPU: "1"}}, "env": [{"name": VISIBLE, "value": "0"}]}
    spec: Json = {
        "initContainers": [{"name": "early"}],
        "containers": [
            shared,
            {"name": "all", "env": [{"name": VISIBLE, "value": "all"}, {"name": "A", "value": "b"}]},
            {"name": "none", "env": [{"name": VISIBLE, "value": "none"}]},
        ],
    }
    overwrite({"spec": spec}, DIALECTS)
    void = {"name": VISIBLE, "value": "void"}
    assert spec["initContainers"] == [{"name": "early", "env": [void]}]
    assert spec["containers"] == [
        shared,
        {"name": "all", "env": [{"name": "A", "value": "b"}, void]},
        {"name": "none", "env": [{"name": VISIBLE, "value": "none"}]},
    ]
