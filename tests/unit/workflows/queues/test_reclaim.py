"""Cards are taken back from workloads that Kueue's rules give up, as few as help, and from nobody else."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable
from copy import deepcopy
from itertools import combinations, permutations
from typing import Any, NamedTuple

import pytest

from effort import seeds_for, times
from fakes.api_server import Operation, refuse
from fakes.objects import CORES, GPU, MEMORY
from fakes.operator_parts import RELEASE_DELAY_S
from fakes.queue_objects import NOTHING, a_pod_set
from fakes.queue_scene import WHOLE, QueueScene, percent_of
from fakes.queue_server import QueueServer
from fakes.virtual_time import LoopClock, settle
from gpuledger.model.errors import Invalid
from gpuledger.model.gang import GroupSeat

SEEDS = seeds_for("victims of queues", times(short=25, long=400))
ALL = {GPU: "4"}


async def fill(scene: QueueScene, *names: str, **more: Any) -> None:
    """Let workloads of one card each run."""
    for name in names:
        await scene.run(name, WHOLE, usage={"gpus": "1"}, **more)


# Who may be evicted.


class Case(NamedTuple):
    """Who wants cards, and who has them."""

    queue: str = "low"
    """Whose queue has them."""
    priority: int = 0
    is_newer: bool = False
    own: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """The queue that wants them."""
    its: dict[str, Any] = {}  # noqa: RUF012
    evicted: bool = False


RECLAIMS, BORROWS = {"reclaim": "Any"}, {"nominal": NOTHING}
CASES = {
    "same queue, Never": Case("high", -1),
    "same queue, lower priority": Case("high", -1, own={"within": "LowerPriority"}, evicted=True),
    "same queue, equal priority": Case("high", 0, own={"within": "LowerPriority"}),
    "same queue, higher priority": Case("high", 1, own={"within": "LowerPriority"}),
    "same queue, equal priority, older": Case("high", 0, own={"within": "LowerOrNewerEqualPriority"}),
    "same queue, equal priority, newer": Case(
        "high", 0, is_newer=True, own={"within": "LowerOrNewerEqualPriority"}, evicted=True
    ),
    "same queue, higher priority, newer": Case("high", 1, is_newer=True, own={"within": "LowerOrNewerEqualPriority"}),
    "same queue, lower priority, though it reclaims only": Case("high", -1, own=RECLAIMS),
    "same queue, lower priority, though it borrows": Case(
        "high", -1, own={"within": "LowerPriority", **BORROWS}, evicted=True
    ),
    "other queue, Never": Case("low", -1, its=BORROWS),
    "other queue, Any": Case("low", 9, own=RECLAIMS, its=BORROWS, evicted=True),
    "other queue, LowerPriority, lower": Case("low", -1, own={"reclaim": "LowerPriority"}, its=BORROWS, evicted=True),
    "other queue, LowerPriority, equal": Case("low", 0, own={"reclaim": "LowerPriority"}, its=BORROWS),
    "other queue, though only within the queue": Case("low", -1, own={"within": "LowerPriority"}, its=BORROWS),
    "other queue, which borrows nothing": Case("low", -1, own=RECLAIMS),
    "other queue, which borrows something else": Case(
        "low", -1, own=RECLAIMS, its={"nominal": {"cpu": "0", "gpus": "4"}}
    ),
    "other queue, own borrows": Case("low", -1, own={**RECLAIMS, **BORROWS}, its=BORROWS),
    "other queue of another cohort": Case("low", -1, own=RECLAIMS, its={**BORROWS, "cohort": "another"}),
    "other queue, neither in a cohort": Case("low", -1, own={**RECLAIMS, "cohort": ""}, its={**BORROWS, "cohort": ""}),
    "a queue that is not known": Case("unknown", -1, own=RECLAIMS),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_who_has_to_give_back_is_by_kueues_rules(scene: QueueScene, case: Case) -> None:
    reserved_at = "2030-01-01T12:00:00Z" if case.is_newer else "2030-01-01T00:00:00Z"
    usage = {"gpus": "4"}
    await scene.run("holder", ALL, queue=case.queue, priority=case.priority, reserved_at=reserved_at, usage=usage)
    scene.cluster_queue("low", **case.its)
    scene.cluster_queue("high", **case.own)
    scene.submit("wants", ALL, queue="high", reserved_at="2030-01-01T06:00:00Z", usage=usage)
    await scene.work()
    assert scene.evicted() == ({"holder"} if case.evicted else set())
    assert scene.api.state("wants") == "Pending"


class Tree(NamedTuple):
    """Queues in a tree: `high` of cohort a wants four cards, `low` of cohort b has them, and uses four of its quota."""

    own: dict[str, Any] = {}  # noqa: RUF012 - never changed
    its: dict[str, Any] = {}  # noqa: RUF012
    cohorts: dict[str, dict[str, Any]] = {}  # noqa: RUF012
    """Beside those of `ROOTED`."""
    priority: int = 0
    """Of who has the cards."""
    evicted: bool = False


ROOTED = {"a": {"parent": "root"}, "b": {"parent": "root"}}
FOUR, EIGHT = {"gpus": "4"}, {"gpus": "8"}
SHARED = {"root": {"nominal": EIGHT}}
"""Half of it for each of the two."""
FAIR = {"fair": True, **BORROWS}
TREES = {
    "it borrows from the other branch": Tree(evicted=True),
    "it borrows of its own cohort's": Tree(cohorts={"b": {"parent": "root", "nominal": FOUR}}),
    "its own cohort's has been lowered": Tree(
        cohorts={"b": {"parent": "root", "nominal": {"gpus": "3"}}}, evicted=True
    ),
    "its own cohort lends nothing": Tree(
        cohorts={"b": {"parent": "root", "nominal": {"gpus": {"nominalQuota": "4", "lendingLimit": "0"}}}}
    ),
    "three floors up": Tree(
        cohorts={"a": {"parent": "c"}, "c": {"parent": "d"}, "d": {"parent": "root"}}, evicted=True
    ),
    "another tree": Tree(cohorts={"b": {"parent": "other root"}}),
    "cohorts in a circle": Tree(cohorts={"root": {"parent": "a"}}),
    "what wants cards borrows of its own cohort's": Tree(
        own=BORROWS, cohorts={"a": {"parent": "root", "nominal": FOUR}}, evicted=True
    ),
    "what wants cards borrows beyond its own cohort's": Tree(
        own=BORROWS, cohorts={"a": {"parent": "root", "nominal": {"gpus": "3"}}}
    ),
    "both borrow of one cohort's": Tree(own={**BORROWS, "cohort": "b"}, cohorts={"b": {"nominal": FOUR}}),
    "what borrows may take from lower priority": Tree(
        own={**BORROWS, "borrowing": {"policy": "LowerPriority"}}, priority=-1, evicted=True
    ),
    "what borrows may take from lower priority, not from equal": Tree(
        own={**BORROWS, "borrowing": {"policy": "LowerPriority"}}
    ),
    "what borrows may take up to a priority": Tree(
        own={**BORROWS, "borrowing": {"policy": "LowerPriority", "maxPriorityThreshold": -3}}, priority=-3, evicted=True
    ),
    "what borrows may take up to a priority, not beyond": Tree(
        own={**BORROWS, "borrowing": {"policy": "LowerPriority", "maxPriorityThreshold": -3}}, priority=-2
    ),
    "fair: equal shares": Tree(own=FAIR, its=FAIR, cohorts=SHARED),
    "fair: equal shares, of larger weight": Tree(
        own=FAIR, its=FAIR, cohorts={**SHARED, "a": {"parent": "root", "weight": "2"}}, evicted=True
    ),
    "fair: equal shares, of smaller weight": Tree(
        own=FAIR, its=FAIR, cohorts={**SHARED, "a": {"parent": "root", "weight": "500m"}}
    ),
    "fair: a weight of none": Tree(
        own=FAIR, its=FAIR, cohorts={**SHARED, "b": {"parent": "root", "weight": "0"}}, evicted=True
    ),
    "fair: both weights are none": Tree(
        own=FAIR,
        its=FAIR,
        cohorts={**SHARED, "a": {"parent": "root", "weight": "0"}, "b": {"parent": "root", "weight": "0"}},
    ),
    "fair: the queues' weights count in their own cohort only": Tree(
        own={**FAIR, "weight": "9"}, its=FAIR, cohorts=SHARED
    ),
    "fair: the queues' weights, in one cohort": Tree(
        own={**FAIR, "cohort": "b", "weight": "2"}, its=FAIR, cohorts={"b": {"nominal": EIGHT}}, evicted=True
    ),
    "fair: what wants cards has quota of its own": Tree(own={"fair": True}, its=FAIR, evicted=True),
    "fair: what has them has quota of its own": Tree(own=FAIR, its={"fair": True}, cohorts=SHARED),
    "fair: its cohort has quota of its own": Tree(
        own=FAIR, its=FAIR, cohorts={**SHARED, "b": {"parent": "root", "nominal": FOUR}}
    ),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
async def test_who_has_to_give_back_in_a_tree_is_by_kueues_rules(scene: QueueScene, tree: Tree) -> None:
    await scene.run("holder", ALL, queue="low", priority=tree.priority, usage=FOUR)
    scene.cluster_queue("low", **{"cohort": "b", **BORROWS, **tree.its})
    scene.cluster_queue("high", **{"cohort": "a", "reclaim": "Any", **tree.own})
    for name, more in {**ROOTED, **tree.cohorts}.items():
        scene.cohort(name, **more)
    scene.submit("wants", ALL, queue="high", usage=FOUR)
    await scene.work()
    assert scene.evicted() == ({"holder"} if tree.evicted else set())
    assert scene.api.state("wants") == "Pending"


async def test_quota_counts_as_soon_as_it_is_reserved_whenever_kueue_says_so_of_the_queue(scene: QueueScene) -> None:
    """A ClusterQueue's status is up to a second behind: what a workload borrows is not in it when it finds no cards."""
    await scene.run("holder", ALL, queue="low", usage=FOUR)
    scene.cluster_queue("low", nominal=NOTHING)
    scene.cluster_queue("high", nominal={"gpus": "3"}, reclaim="Any")
    scene.submit("wants", ALL, queue="high", usage=FOUR)
    await scene.work()
    assert scene.evicted() == set()


async def test_with_fair_sharing_who_has_the_largest_share_leaves_first(scene: QueueScene) -> None:
    await fill(scene, "a", "b", "c", queue="low")
    await fill(scene, "d", queue="other")
    for name, weight in (("low", "1"), ("other", "1"), ("high", "9")):
        scene.cluster_queue(name, nominal=NOTHING, fair=True, reclaim="Any", weight=weight)
    scene.cohort("all", nominal=EIGHT)
    scene.submit("wants", {GPU: "2"}, queue="high", usage={"gpus": "2"})
    await scene.work()
    assert scene.evicted() == {"b", "c"}  # though d is newer


async def test_never_more_is_taken_than_a_queue_has_borrowed(scene: QueueScene) -> None:
    await fill(scene, "a", "b", "c", "d", queue="low")
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal={"gpus": "1"})
    scene.submit("four", ALL, queue="high")
    scene.submit("three", {GPU: "3"}, queue="high")
    await scene.work()
    assert scene.evicted() == {"b", "c", "d"}  # the newest, for the one that they help
    assert "leave" in scene.api.said("three")[1]


async def test_a_workload_without_cards_does_not_use_up_what_its_queue_gives_back(scene: QueueScene) -> None:
    await scene.run("cards", ALL, queue="low", usage={"gpus": "4"})
    await scene.run("plain", {"cpu": "1"}, pods=0, queue="low", usage={"gpus": "4"})
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal={"gpus": "4"})
    scene.submit("wants", ALL, queue="high")
    await scene.work()
    assert scene.evicted() == {"cards"}


async def test_who_helps_is_taken_where_the_first_by_kueues_order_would_not(api: QueueServer) -> None:
    scene = QueueScene(api, {"node-a": 2, "node-b": 1})
    two = a_pod_set("main", 1, {GPU: "2"}, nodeSelector={"name": "node-a"})
    one = a_pod_set("main", 1, WHOLE, nodeSelector={"name": "node-b"})
    for name, pod_set in (("helps", two), ("newer", one)):
        scene.submit(name, pod_sets=[pod_set], queue="low", usage={"gpus": "2"})
        await scene.work()
        await scene.admit(name)
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal={"gpus": "2"})
    scene.submit("wants", {GPU: "2"}, queue="high")
    await scene.work()
    assert scene.evicted() == {"helps"}


async def test_a_workload_whose_usage_can_not_be_read_is_left_alone(api: QueueServer, scene: QueueScene) -> None:
    await scene.run("odd", ALL, queue="low", usage={"gpus": "many"})
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    scene.submit("wants", ALL, queue="high")
    await scene.work()
    assert scene.evicted() == set()
    assert "0 of 1" in api.said("wants")[1]


# What happens then.


async def test_a_victim_is_queued_again_and_the_workload_that_needs_its_cards_gets_them(
    api: QueueServer, scene: QueueScene
) -> None:
    await fill(scene, "a", "b", "c", "d", queue="low")
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    scene.submit("wants", percent_of(4, 60), queue="high")
    await scene.work()
    assert scene.evicted() == {"a", "b", "c", "d"}
    (check,) = api.workloads["a"]["status"]["admissionChecks"]
    assert check.get("requeueAfterSeconds") is None
    assert "high" in check["message"]
    for name in "abcd":
        api.evict_workload(name)
        api.delete_pod(f"{name}-0")
    scene.submit("first", WHOLE, queue="low", priority=9)  # does not get what others have left for it
    await asyncio.sleep(2 * RELEASE_DELAY_S)
    await scene.parts.idle()
    await scene.work()
    assert scene.states("wants", "first") == ["Ready", "Pending"]


async def test_nobody_is_evicted_where_it_would_not_help(scene: QueueScene) -> None:
    await fill(scene, "a", "b", queue="low")
    assert scene.stranger("other", WHOLE)
    await scene.parts.bind("other", "node-a")
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    scene.submit("wants", ALL, queue="high")
    await scene.work()
    assert scene.evicted() == set()


async def test_pods_that_leave_count_as_gone(api: QueueServer, scene: QueueScene) -> None:
    await fill(scene, "a", "b", "c", "d", queue="low")
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    leaving = deepcopy(api.pods["default", "a-0"])
    leaving["metadata"]["deletionTimestamp"] = "2030-01-01T00:17:10Z"
    api.put_pod(leaving)
    api.evict_workload("a")
    api.delete_pod("b-0")
    scene.parts.watch()
    await settle()
    scene.submit("wants", {GPU: "2"}, queue="high")
    await scene.work()
    assert scene.evicted() == set()
    assert "leave" in api.said("wants")[1]
    scene.submit("three", {GPU: "3"}, queue="high")
    await scene.work()
    assert len(scene.evicted()) == 1


async def test_what_was_evicted_a_moment_ago_is_not_evicted_for_again(scene: QueueScene) -> None:
    await fill(scene, "a", "b", "c", "d", queue="low")
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    scene.submit("wants", WHOLE, queue="high")
    for _ in range(5):
        await scene.later(2.0)
        ledger = scene.ledger
        ledger.set_offer("node-a", ledger.offer("node-a"), hangs=not ledger.hangs("node-a"))  # something changes
    assert len(scene.evicted()) == 1


async def test_who_was_evicted_and_has_cards_again_does_not_count_as_leaving(
    api: QueueServer, scene: QueueScene
) -> None:
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    for wants in ("first", "second"):
        scene.submit("holder", ALL, queue="low", usage={"gpus": "4"})
        await scene.work()
        assert scene.states("holder") == ["Ready"]
        scene.submit(wants, ALL, queue="high")
        await scene.work()
        assert scene.evicted() == {"holder"}
        api.evict_workload("holder")
        api.delete_workload(wants)
        scene.parts.watch()


@pytest.mark.parametrize("is_bound", [False, True], ids=["only reserved", "running"])
async def test_what_is_only_reserved_is_taken_back_as_well(scene: QueueScene, is_bound: bool) -> None:
    if is_bound:
        await scene.run("holder", ALL, queue="low", usage={"gpus": "4"})
    else:
        scene.submit("holder", ALL, queue="low", usage={"gpus": "4"})
        await scene.work()
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    scene.submit("wants", ALL, queue="high")
    await scene.work()
    assert scene.evicted() == {"holder"}
    assert scene.api.state("wants") == ("Pending" if is_bound else "Ready")


async def test_who_could_not_be_evicted_is_asked_again(api: QueueServer, scene: QueueScene) -> None:
    await scene.run("holder", ALL, queue="low", usage={"gpus": "4"})
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    api.queue(Operation.SAY_CHECK, *[refuse(Invalid("refused", 422))] * 8)
    scene.submit("wants", ALL, queue="high")
    await scene.work()
    assert scene.evicted() == set()
    await scene.later(5.0)
    await scene.later(40.0)  # nothing has changed meanwhile
    assert scene.evicted() == {"holder"}


class SlowClock(LoopClock):
    """All work takes long, so that others have their turn in between."""

    def __init__(self) -> None:
        super().__init__()
        self.worked_s = 0.0

    def work_s(self) -> float:
        """Return a time that passes whenever somebody looks."""
        self.worked_s += 0.01
        return self.worked_s


async def test_two_who_look_at_the_same_time_do_not_evict_twice(api: QueueServer) -> None:
    scene = QueueScene(api, clock=SlowClock())
    await fill(scene, "a", "b", "c", "d", queue="low")
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    scene.submit("one", percent_of(1, 50), queue="high")
    scene.submit("other", percent_of(1, 50), queue="high")
    for _ in range(20):
        await scene.work()
        await asyncio.sleep(0.5)
    assert len(scene.evicted()) == 1  # both fit on its card


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (percent_of(1, 30), percent_of(1, 70)),
        ({GPU: "1", MEMORY: "4000"}, {GPU: "1", MEMORY: "12000"}),
        ({GPU: "1", MEMORY: "1", CORES: "40"}, {GPU: "1", MEMORY: "1", CORES: "60"}),
    ],
)
async def test_pods_of_several_kinds_are_tried_in_the_order_in_which_they_fit(
    api: QueueServer, small: dict[str, str], large: dict[str, str]
) -> None:
    scene = QueueScene(api, {"node-a": 2})
    await fill(scene, "a", "b", queue="low")
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal=NOTHING)
    pod_sets = [a_pod_set("small", 2, small), a_pod_set("large", 2, large)]
    scene.submit("wants", pod_sets=pod_sets, queue="high")
    await scene.work()
    assert scene.evicted() == {"a", "b"}


# Compared with every set of victims.

NODES = {"node-a": 3, "node-b": 2}


class Holder(NamedTuple):
    """A workload that has cards."""

    name: str
    queue: str
    priority: int
    reserved_at: str
    used: int


def may_be_evicted(holder: Holder, own: dict[str, Any], queues: dict[str, int], priority: int) -> bool:
    """Tell what Kueue's rules say of a workload by itself."""
    if holder.queue == "high":
        return own["within"] == "LowerPriority" and holder.priority < priority
    is_allowed = own["reclaim"] == "Any" or (own["reclaim"] == "LowerPriority" and holder.priority < priority)
    return is_allowed and queues[holder.queue] > 0


def is_allowed(victims: Collection[Holder], queues: dict[str, int]) -> bool:
    """Return whether these can be taken in some order, each while its queue still borrows."""
    return any(_in_this_order(each, dict(queues)) for each in permutations(victims))


def _in_this_order(victims: Iterable[Holder], left: dict[str, int]) -> bool:
    for victim in victims:
        if victim.queue != "high":
            if left[victim.queue] <= 0:
                return False
            left[victim.queue] -= victim.used
    return True


class Cards:
    """How much of each card each workload has, at one moment."""

    def __init__(self, scene: QueueScene) -> None:
        self._cards = list[tuple[str, dict[str, int]]]()  # node name; name of a workload -> MiB
        for entry in scene.ledger.entries():
            shares = {uid: holder.share for uid, holder in entry.holders.items()}
            has = {uid.removeprefix("uid-")[:2]: share for uid, share in shares.items()}
            has |= {key.group.name: share for key, share in entry.seats.items() if isinstance(key, GroupSeat)}
            self._cards.append((entry.card.node_name, {name: s.amounts.memory_mib for name, s in has.items()}))

    def fits_without(self, gone: Collection[Holder], cards: int, percent: int) -> bool:
        """Return whether a pod would fit on a node if these were gone."""
        names, need = {holder.name for holder in gone}, 16_000 * percent // 100
        with_room = Counter[str]()
        for node_name, has in self._cards:
            used = sum(some for name, some in has.items() if name not in names)
            with_room[node_name] += used + need <= 16_000
        return any(number >= cards for number in with_room.values())


@pytest.mark.parametrize("seed", SEEDS)
async def test_victims_are_found_if_and_only_if_some_that_are_allowed_help_and_none_can_be_spared(
    api: QueueServer, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    scene = QueueScene(api, NODES)
    holders = list[Holder]()
    for number in range(rng.randint(3, 6)):
        name, queue, priority = f"w{number}", rng.choice(["low", "other", "high"]), rng.randint(0, 2)
        cards, percent = rng.randint(1, 2), rng.choice([20, 40, 60, 100])
        used = rng.randint(1, 3)
        on = rng.choice([*NODES, ""])
        pods = [a_pod_set("main", 1, percent_of(cards, percent), **({"nodeSelector": {"name": on}} if on else {}))]
        found = scene.submit(name, pod_sets=pods, queue=queue, priority=priority, usage={"gpus": str(used)})
        await scene.work()
        if api.state(name) != "Ready":
            api.delete_workload(name)
            scene.parts.watch()
            continue
        await scene.admit(name)
        if rng.random() < 0.7:
            await scene.bind(f"{name}-0", name, percent_of(cards, percent))
        reserved_at = found["status"]["conditions"][0]["lastTransitionTime"]
        holders.append(Holder(name, queue, priority, reserved_at, used))
    own = {"within": rng.choice(["Never", "LowerPriority"]), "reclaim": rng.choice(["Never", "LowerPriority", "Any"])}
    of_all = {name: sum(each.used for each in holders if each.queue == name) for name in ("low", "other")}
    queues = {name: min(rng.randint(0, 5), some) for name, some in of_all.items()}  # what each has borrowed
    scene.cluster_queue("high", **own)
    for queue, some in queues.items():
        scene.cluster_queue(queue, nominal={"gpus": str(of_all[queue] - some)})
    cards, percent = rng.randint(1, 3), rng.choice([40, 60, 100])
    scene.submit("wants", percent_of(cards, percent), priority=1, usage={"gpus": "1"})
    candidates = [each for each in holders if may_be_evicted(each, own, queues, 1)]
    sets = [each for number in range(1, len(candidates) + 1) for each in combinations(candidates, number)]
    before = Cards(scene)
    could = any(is_allowed(each, queues) and before.fits_without(each, cards, percent) for each in sets)
    await scene.work()
    victims = [each for each in holders if each.name in scene.evicted()]
    if before.fits_without([], cards, percent):
        assert api.state("wants") == "Ready"
        assert victims == []
        return
    assert bool(victims) == could
    assert set(victims) <= set(candidates)
    assert is_allowed(victims, queues)
    if victims:
        assert before.fits_without(victims, cards, percent)
    for spared in victims:
        assert not before.fits_without([each for each in victims if each is not spared], cards, percent)
