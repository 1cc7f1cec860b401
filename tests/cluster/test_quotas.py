"""A ResourceQuota with HAMi's keys: never more than it allows in any state of etcd, and whoever fits in starts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from chaos.history import Change, History
from cluster.cluster import CORES, COUNT, MEMORY, PERCENT, PODS, Cluster, Json, phase, pod
from cluster.gangs import bound, gang, held, names
from cluster.shared import cluster_on
from control_plane import ControlPlane
from effort import seeds_for, times
from installation import NOTHING_RUNS

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
GPUMEM, GPUS = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpu"
CARD_MIB = 40_960
ROUNDS = times(4, 100)


class Most:
    """The most memory that the pods of the namespace have had together, in MiB, whatever came in between."""

    def __init__(self) -> None:
        self.mib = 0
        self._by_card: dict[str, int] = {}

    def take(self, change: Change) -> None:
        """Add up what a change leaves, in the history's thread."""
        if change.kind == "card":
            holders = ((change.now or {}).get("status") or {}).get("holders", [])
            self._by_card[change.key] = sum(each["memoryMiB"] for each in holders if each["namespace"] == "default")
            self.mib = max(self.mib, self.now)

    @property
    def now(self) -> int:
        """Return what they have now."""
        return sum(self._by_card.values())


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Cluster, Most]]:
    most = Most()
    own = ControlPlane.run(json_storage=True)  # what the namespace has is followed in etcd
    with cluster_on(own, NOTHING_RUNS) as cluster, History(cluster.plane.etcd_url) as history:
        history.listeners = (most.take,)
        cluster.add_nodes(2, gpus=4)
        yield cluster, most
        assert history.failure is None


@pytest.fixture
def limited(started: tuple[Cluster, Most]) -> Iterator[tuple[Cluster, Most]]:
    cluster, most = started
    most.mib = 0
    yield cluster, most
    cluster.request("DELETE", QUOTAS)
    cluster.request("DELETE", PODS, {"gracePeriodSeconds": 0})
    cluster.wait(lambda: not held(cluster), "nothing is left in the ledger")


def set_quota(cluster: Cluster, key: str, most: int) -> None:
    """Create or change the namespace's quota, and wait until the operator knows it."""
    body: Json = {"spec": {"hard": {key: str(most)}}}
    if cluster.request("GET", QUOTAS)["items"]:
        cluster.patch(f"{QUOTAS}/gpus", body)
    else:
        cluster.request("POST", QUOTAS, {**body, "metadata": {"name": "gpus"}})
    limit = f'gpuledger_namespace_quota_limit{{key="{key}",namespace="default",quota="gpus"}}'
    cluster.wait(lambda: cluster.metric(limit) == most, "the operator knows the quota")


@pytest.mark.promise("quotas")
def test_two_of_three_pods_start_the_third_is_told_and_starts_when_one_has_gone(limited: tuple[Cluster, Most]) -> None:
    cluster, most = limited
    set_quota(cluster, GPUMEM, 16_000)
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 8_000}) for name in "abc"))
    cluster.wait(lambda: len(bound(cluster)) == 2, "two are bound")
    (late,) = set("abc") - bound(cluster)
    assert GPUMEM in cluster.wait_refused(late, "the quota of the pod's namespace does not allow it")
    cluster.delete(next(iter(bound(cluster))))
    cluster.wait_bound(late)
    assert most.mib == 16_000
    cluster.check_consistent()


@pytest.mark.parametrize("limits", [{COUNT: 1}, {COUNT: 1, PERCENT: 100}, {COUNT: 2, MEMORY: CARD_MIB // 2}])
def test_whole_cards_and_percentages_count_as_the_memory_that_they_are(
    limited: tuple[Cluster, Most], limits: Json
) -> None:
    cluster, most = limited
    set_quota(cluster, GPUMEM, 2 * CARD_MIB)
    cluster.create(*(pod(name, limits) for name in "abc"))
    cluster.wait(lambda: len(bound(cluster)) == 2, "two are bound")
    (late,) = set("abc") - bound(cluster)
    cluster.wait_refused(late, "the quota of the pod's namespace does not allow it")
    assert most.mib == 2 * CARD_MIB


def test_a_quota_that_is_lowered_leaves_those_alone_that_run_and_one_that_is_raised_lets_others_start(
    limited: tuple[Cluster, Most],
) -> None:
    cluster, _ = limited
    set_quota(cluster, GPUS, 2)
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 1_000}) for name in "abc"))
    cluster.wait(lambda: len(bound(cluster)) == 2, "two are bound")
    running = bound(cluster)
    set_quota(cluster, GPUS, 1)
    assert bound(cluster) == running
    set_quota(cluster, GPUS, 3)
    cluster.wait_bound(*"abc")


@pytest.mark.promise("quotas")
def test_a_gang_that_is_too_much_as_a_whole_keeps_nothing_and_others_go_on(limited: tuple[Cluster, Most]) -> None:
    cluster, _ = limited
    set_quota(cluster, GPUS, 3)
    members = gang("train", 4)
    cluster.create(*members)
    cluster.wait_refused("train-0", "the quota of the pod's namespace does not allow it")
    cluster.create(pod("single", {COUNT: 1}))
    cluster.wait_bound("single")
    assert held(cluster) == 1
    set_quota(cluster, GPUS, 5)
    cluster.wait_bound(*names(members))


def test_an_operator_that_starts_counts_what_is_there(limited: tuple[Cluster, Most]) -> None:
    cluster, most = limited
    set_quota(cluster, GPUMEM, 10_000)
    cluster.create(pod("a", {COUNT: 1, MEMORY: 7_000}))
    cluster.wait_bound("a")
    cluster.installation.restart_operator()
    cluster.create(pod("b", {COUNT: 1, MEMORY: 4_000}), pod("c", {COUNT: 1, MEMORY: 3_000}))
    cluster.wait_bound("c")
    cluster.wait_refused("b", "the quota of the pod's namespace does not allow it")
    assert most.mib == 10_000


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds_for("quotas", 1))
def test_random_pods_never_have_more_and_none_waits_that_may_start(
    limited: tuple[Cluster, Most], seed: int, say: Callable[[str], None]
) -> None:
    cluster, most = limited
    dice, number, asked = random.Random(seed), 0, dict[str, int]()  # noqa: S311 - no secret
    for _ in range(ROUNDS):
        before = most.now
        allowed = dice.choice((20_000, 50_000, 100_000))
        set_quota(cluster, GPUMEM, allowed)
        most.mib = most.now
        for _ in range(dice.randint(1, 6)):
            number += 1
            cards, memory = dice.choice(((1, 4_000), (1, 9_000), (2, 7_500), (1, 20_000)))
            asked[f"p{number}"] = cards * memory
            cluster.create(pod(f"p{number}", {COUNT: cards, MEMORY: memory, CORES: 1}))
        cluster.wait(partial(is_stable, cluster, asked, allowed), "all that may start have")
        assert most.mib <= max(allowed, before)
        cluster.check_consistent()
        running = sorted(bound(cluster))
        for name in dice.sample(running, dice.randint(0, len(running))):
            cluster.delete(name)
            del asked[name]
        cluster.wait(lambda: all(name in asked for name in bound(cluster)), "those are gone")
    say(f"{ROUNDS} rounds, {number} pods; in all, {len(bound(cluster))} run at the end")


def is_stable(cluster: Cluster, asked: dict[str, int], allowed: int) -> bool:
    """Return whether the ledger has exactly what is bound, and no pod waits that the quota has room for."""
    running = bound(cluster)
    if any(phase(card) != "Ready" for card in cluster.cards().values()):
        return False
    holders = [each for listed in cluster.holders().values() for each in listed]
    used = sum(asked[name] for name in running)
    if sum(each["memoryMiB"] for each in holders) != used:
        return False
    return all(used + asked[name] > allowed for name in asked.keys() - running)
