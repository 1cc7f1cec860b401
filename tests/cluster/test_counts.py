"""What a pod costs the API server and the operator, in numbers that do not depend on the machine.

`make bench` measures times; this fails when somebody makes a pod cost more.
"""

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cluster.claims import TEMPLATES, claiming, create_class, remove_claims, serve_claims, share, template
from cluster.cluster import CORES, COUNT, MEMORY, PERCENT, Cluster, pod
from cluster.cluster import PODS as PODS_PATH
from cluster.gangs import gang
from gpuledger.formats.quantity import whole_number
from gpuledger.model.card import Amounts
from installation import USER

Json = dict[str, Any]

NODES, PODS = 50, 100
GANG_OF = 8
LEDGER_WRITES_PER_POD = 1.05
"""A share is entered once; the API server may refuse a write and want it again."""
FILTERS_PER_POD = 1.05
LATE_ANSWERS = 0.05
"""So many of the cards are read at most, because the answer to a write was late or lost; and of the claims, because
their watch is behind kube-scheduler's."""
CHANGES_PER_POD = 3
"""Of the room on its node: its share is on hold, it is stored, the hold is given back."""

QUOTAS, QUOTA_MEMORY = "/api/v1/namespaces/default/resourcequotas", "limits.nvidia.com/gpumem"
LEAST_S = 2.0
"""The operator gathers for so long what a quota is to show."""

EVALUATIONS, FILTERS = "gpuledger_shape_evaluations_total", "gpuledger_filters_total"


@pytest.mark.promise("quiet")
def test_a_hundred_quarter_cards_cost_few_writes_and_few_evaluations_and_no_read(cluster: Cluster) -> None:
    cluster.add_nodes(NODES)
    quarter = {COUNT: 1, PERCENT: 25, CORES: 25}
    cluster.create(pod("first", quarter))  # for the first of its shape, every node is looked at
    cluster.wait_bound("first")
    cluster.settle()
    evaluations, filters = cluster.metric(EVALUATIONS), cluster.metric(FILTERS)
    asked = _asked_for(cluster, [pod(f"pod-{number}", quarter) for number in range(PODS)])
    _is_least(asked, PODS)

    # Were all nodes looked at, it would be fifty times as many as there are questions.
    questions = cluster.metric(FILTERS) - filters
    assert questions <= FILTERS_PER_POD * PODS
    assert cluster.metric(EVALUATIONS) - evaluations <= CHANGES_PER_POD * questions


def test_gangs_cost_no_more_than_the_same_pods_without_one(cluster: Cluster) -> None:
    cluster.add_nodes(NODES)
    gangs = [gang(f"gang-{number}", GANG_OF) for number in range(PODS // GANG_OF)]
    members = [member for each in gangs for member in each]
    _is_least(_asked_for(cluster, members), len(members))


def test_a_quota_costs_a_write_every_few_seconds_however_many_pods_come(cluster: Cluster) -> None:
    cluster.add_nodes(NODES)
    cluster.request("POST", QUOTAS, {"metadata": {"name": "gpus"}, "spec": {"hard": {QUOTA_MEMORY: "10000000"}}})
    cluster.create(pod("first", {COUNT: 1, MEMORY: 10240}))
    cluster.wait_bound("first")
    cluster.wait(lambda: _quota_used(cluster) == 10240, "the quota shows the first")
    begin_s = time.monotonic()
    asked = _asked_for(cluster, [pod(f"pod-{number}", {COUNT: 1, MEMORY: 10240}) for number in range(PODS)])
    shown = asked.pop(("patch", "resourcequotas", "status"), 0)
    assert shown <= 1 + (time.monotonic() - begin_s) / LEAST_S
    _is_least(asked, PODS)
    cluster.wait(lambda: _quota_used(cluster) == 10240 * (1 + PODS), "the quota shows all")
    cluster.request("DELETE", QUOTAS)


def _quota_used(cluster: Cluster) -> int:
    used = (cluster.request("GET", f"{QUOTAS}/gpus").get("status") or {}).get("used") or {}
    return int(whole_number(used.get(QUOTA_MEMORY, "0")) or 0)


def _is_least(asked: Counter[tuple[str, str, str]], pods: int) -> None:
    """Check that pods cost one Binding each and a write of the ledger, many of which go together, and nothing else."""
    asked = asked.copy()
    assert asked.pop(("patch", "gpuallocations", "status")) <= LEDGER_WRITES_PER_POD * pods
    assert asked == {("create", "pods", "binding"): pods}


def test_a_pod_with_a_claim_costs_one_more_write_and_one_beside_it_without_costs_nothing_more(cluster: Cluster) -> None:
    create_class(cluster)
    serve_claims(cluster, *cluster.add_nodes(NODES))
    cluster.request("POST", TEMPLATES, template("third", share("10Gi", 30)))
    cluster.create(claiming("first", ["third"]))  # from now on the operator follows claims
    cluster.wait_bound("first")
    cluster.settle()

    asked = _asked_for(cluster, [pod(f"plain-{n}", {COUNT: 1, MEMORY: 10240, CORES: 30}) for n in range(PODS)])
    _is_least(asked, PODS)

    asked = _asked_for(cluster, [claiming(f"claim-{number}", ["third"]) for number in range(PODS)])
    assert asked.pop(("patch", "resourceclaims", "status")) == PODS
    assert asked.pop(("get", "resourceclaims", ""), 0) <= LATE_ANSWERS * PODS
    _is_least(asked, PODS)  # it reads nothing else that it follows
    remove_claims(cluster)


def _asked_for(cluster: Cluster, pods: list[Json]) -> Counter[tuple[str, str, str]]:
    """Create pods; return what the operator has asked of the API server until they were bound.

    Without the few reads of cards whose write was answered late, which is up to the machine.
    """
    names = [body["metadata"]["name"] for body in pods]
    offset = cluster.plane.audit_offset()
    cluster.create(*pods)
    cluster.wait_bound(*names)
    cluster.settle()
    ours = cluster.our_requests(offset)
    assert Counter(e.name for e in ours if e.subresource == "binding") == dict.fromkeys(names, 1)
    asked = Counter((e.verb, e.resource, e.subresource) for e in ours)
    assert asked.pop(("get", "gpuallocations", ""), 0) <= LATE_ANSWERS * len(pods)
    return asked


def test_a_pod_that_ends_in_good_order_costs_one_read_and_one_write_at_most(cluster: Cluster) -> None:
    """Shares that end on one card at the same time go in one write."""
    cluster.add_nodes(NODES)
    names = [f"pod-{number}" for number in range(PODS)]
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 25}) for name in names))
    cluster.wait_bound(*names)
    running = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    for name in names:
        cluster.patch(f"{PODS_PATH}/{name}/status", {"status": running})
    cluster.settle()
    offset = cluster.plane.audit_offset()
    for number, name in enumerate(names):
        if number % 2:  # it was asked to leave, and its kubelet lets it end
            cluster.request("DELETE", f"{PODS_PATH}/{name}")
        cluster.finish(name)
        cluster.delete(name)
    cluster.wait(lambda: not any(cluster.holders().values()), "all shares are given back")
    cluster.settle()

    asked = [event for event in cluster.plane.audit_events(offset) if event.user == USER and event.verb != "watch"]
    ours = Counter((e.verb, e.resource, e.subresource) for e in asked if not e.agent.startswith("kube-scheduler"))
    writes = ours.pop(("patch", "gpuallocations", "status"))
    assert ours == {("get", "pods", ""): PODS}
    assert writes <= PODS


def test_cards_carry_no_list_of_who_wrote_which_field(cluster: Cluster) -> None:
    """It would make every write of the ledger a sixth more expensive."""
    node = cluster.add_nodes(1, gpus=2)[0]
    cluster.create(pod("share", {COUNT: 2, PERCENT: 25}))
    cluster.wait_bound("share")
    assert [len(holders) for holders in cluster.holders().values()] == [1, 1]
    assert not any("managedFields" in card["metadata"] for card in cluster.cards().values())

    larger = [replace(card, capacity=card.capacity + Amounts(memory_mib=1)) for card in node.cards]
    cluster.register(replace(node, cards=tuple(larger)))
    wanted = [card.capacity.memory_mib for card in larger]
    cluster.wait(
        lambda: [card["spec"]["capacity"]["memoryMiB"] for card in cluster.cards().values()] == wanted, "a new capacity"
    )
    assert not any("managedFields" in card["metadata"] for card in cluster.cards().values())
