"""A simulation that finds nothing proves nothing. Here the program is broken, one safeguard at a time, and must fail.

Each break says which scenario shows it, and by which words the checker must call it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.share import Holder, HolderState, Placement, Pod, Share
from gpuledger.workflows.binding import bind_pod
from gpuledger.workflows.binding.bind_pod import OpenBindRequest
from gpuledger.workflows.journal import entries as patches
from gpuledger.workflows.journal import journal
from gpuledger.workflows.journal.entries import Add
from gpuledger.workflows.journal.journal import Entered
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.placing.place_pod import PodPlacer
from gpuledger.workflows.preemption.for_scheduler import PreemptionStarter
from gpuledger.workflows.quota import QuotaFence
from gpuledger.workflows.release import Held, JudgedPod, PodReleaser, ReleaseDeadlines
from simulation import card_checks
from simulation.api_server import ApiServer, Operation
from simulation.breaks import Break, Json, Patch, lives
from simulation.explorers import Mood, Rule
from simulation.fault_breaks import FAULT_BREAKS
from simulation.gang_breaks import GANG_BREAKS
from simulation.prepared import prepared

LOST = "has lost its share"
NOTHING = "on which it holds nothing"
LEFT = "is not a living bound pod"


ON_NODE_B = 3
"""The way of a Filter that asks about that node only, of two."""

WRITES = frozenset({Operation.WRITE_STATUS, Operation.BIND})

HASTY = Mood(frozenset({Operation.BIND}), (6, 7, 8), 1, 0.5, frozenset({Operation.BIND, "other"}), 0.7, 0.05, 0.2)
"""A Binding is refused; others are late, and so is what the schedulers write."""

LATE = Mood(laggards=frozenset({Operation.BIND, "watch"}), lag_rate=0.7, catch_up_rate=0.05, act_rate=0.2)
"""Bindings and watches are late."""


def no_give_back(patch: Patch) -> None:
    async def give_back(self: PodReleaser, pod: Pod, shares: list[Share], unbound: set[str]) -> None:
        """Leave them."""

    async def judge(self: PodReleaser, pod_uid: str) -> None:
        """Find nothing wrong."""

    patch.setattr(PodReleaser, "give_back", give_back)
    patch.setattr(PodReleaser, "_judge", judge)


def give_back_without_fence(patch: Patch) -> None:
    async def fence(self: PodReleaser, pod: Pod) -> JudgedPod | None:
        return await self._read(pod)

    patch.setattr(PodReleaser, "_fence", fence)


def quota_looked_at_once(patch: Patch) -> None:
    async def check(self: QuotaFence, pod: Pod, placement: Placement) -> None:
        """Rely on what was known when the cards were chosen."""

    patch.setattr(QuotaFence, "check", check)


def no_sweep(patch: Patch) -> None:
    async def judge(self: PodReleaser, pod_uid: str) -> None:
        """Find nothing wrong."""

    patch.setattr(PodReleaser, "_judge", judge)


def without(*names: str) -> Callable[[Patch], None]:
    def take_away(patch: Patch) -> None:
        bind = ApiServer._bind

        def forgetful(self: ApiServer, pod: Json, binding: Json) -> Json:
            metadata = {key: value for key, value in binding["metadata"].items() if key not in names}
            return bind(self, pod, {**binding, "metadata": metadata})

        patch.setattr(ApiServer, "_bind", forgetful)

    return take_away


def no_totals(patch: Patch) -> None:
    patch.setattr(card_checks, "_broken_total", lambda *_: None)


def untested_patches(patch: Patch) -> None:
    def patch_of(*arguments: Any) -> list[Json]:
        return [operation for operation in patches.patch_of(*arguments) if operation["op"] != "test"]

    patch.setattr(journal, "patch_of", patch_of)


def old_news_believed(patch: Patch) -> None:
    load = Ledger.load

    def believe(self: Ledger, stored: Any) -> bool:
        entry = self.entry(stored.card.uuid)
        if entry is not None:
            entry.resource_version = min(entry.resource_version, stored.resource_version - 1)
        return load(self, stored)

    patch.setattr(Ledger, "load", believe)


def memory_believed(patch: Patch) -> None:
    settle = patches._settle_add

    def trusting(card: Any, entry: Any, staying: Any) -> bool:
        present = card.holders.get(entry.holder.pod.uid)
        if present is not None and present.state is HolderState.ALLOCATED:
            entry.holder = replace(entry.holder, attempt=present.attempt)
        return settle(card, entry, staying)

    patch.setattr(patches, "_settle_add", trusting)


def never_looked_again(patch: Patch) -> None:
    async def still_has(self: journal.Journal, holder: Holder) -> bool:
        return True

    patch.setattr(journal.Journal, "still_has", still_has)


def attempts_of_one_name(patch: Patch) -> None:
    patch.setattr(journal, "token_hex", lambda _: "one")


def marked_shares_used(patch: Patch) -> None:
    """Either alone is enough: that what is marked is not used, and that who uses it takes it over."""
    attempts_of_one_name(patch)
    settle = patches._settle_add

    def careless(card: Any, entry: Any, staying: Any) -> bool:
        present = card.holders.get(entry.holder.pod.uid)
        if present is not None and present.state is HolderState.RELEASING:
            card.holders[entry.holder.pod.uid] = replace(present, state=HolderState.ALLOCATED, deadline=None)
        return settle(card, entry, staying)

    tests = patches._tests
    patch.setattr(patches, "_settle_add", careless)
    patch.setattr(patches, "_tests", lambda place, holder: tests(place, holder)[:1])


def no_wake_up(patch: Patch) -> None:
    patch.setattr(WaitingPods, "give_room", lambda self: None)


def unclear_is_failed(patch: Patch) -> None:
    """Give the shares back without looking at the pod."""

    async def settle(self: PodReleaser, pod: Pod, found: Json | None, may_run: object) -> None:
        await self._remove(pod.uid)

    patch.setattr(PodReleaser, "_settle", settle)


def success_always(patch: Patch) -> None:
    bind = PodPlacer.bind

    async def confident(self: PodPlacer, arguments: Any, is_connected: Any) -> None:
        with suppress(GpuledgerError):
            await bind(self, arguments, is_connected)

    patch.setattr(PodPlacer, "bind", confident)


def bound_without_a_question(patch: Patch) -> None:
    patch.setattr(OpenBindRequest, "is_asked", lambda self: True)


def looked_at_once(patch: Patch) -> None:
    async def had_to_wait(_: OpenBindRequest) -> bool:
        return False

    patch.setattr(OpenBindRequest, "had_to_wait", had_to_wait)


def failed_before_it_is_known(patch: Patch) -> None:
    async def until_known(self: OpenBindRequest, task: object) -> None:
        """Take what is not known for failed."""

    patch.setattr(OpenBindRequest, "until_known", until_known)


def writer_with_a_defect(patch: Patch) -> None:
    def patch_of(*_: Any) -> list[Json]:
        raise KeyError("holders")

    patch.setattr(journal, "patch_of", patch_of)


def bound_before_entered(patch: Patch) -> None:
    async def enter(self: bind_pod.PodBinder, pod: Pod, placement: Any, before: object) -> list[Entered]:
        for share in placement.shares:
            self._journal._submit(share.uuid, Add(holder=Holder(pod, share, attempt="hasty")))
        return []

    patch.setattr(bind_pod.PodBinder, "_enter", enter)


def deadlines_believed(patch: Patch) -> None:
    def first_wait_s(self: ReleaseDeadlines, held: Held) -> float:
        times, self._times = self._times, replace(self._times, by_deadline=True)
        try:
            return original(self, held)
        finally:
            self._times = times

    original = ReleaseDeadlines._first_wait_s
    patch.setattr(ReleaseDeadlines, "_first_wait_s", first_wait_s)


def reserved_like_any_other(patch: Patch) -> None:
    patch.setattr(PodReleaser, "_seconds_to", lambda self, holder: 0.0)


def evicted_before_claimed(patch: Patch) -> None:
    async def claim(self: PreemptionStarter, pod: Pod, found: Any, evicted: object, leaving: Any, _: float) -> None:
        for victim in leaving or found.pods:
            await cast(Any, self._claimer)._store.evict_pod(victim)  # the one store has all requests

    patch.setattr(PreemptionStarter, "claim", claim)


REFUSED_ONCE = Rule("operator 1: bind pod", way=9)
H_COMES = Rule("operator 1: sees MODIFIED pod a", skip=1, act=True)
STATUS_LATE = Rule("scheduler 1: writes status", until=("operator 2: bind pod",) * 2)

FILTER_AFTER_BINDING = Rule("scheduler 1: Filter uid-a", skip=1, until=("operator 1: bind pod",))

BREAKS = [
    Break("giving back, and the sweep", no_give_back, "two pods for one card", LEFT),
    Break("the sweep", no_sweep, "two pods for one card", LEFT, Mood(act_rate=0.3)),
    Break("the look at the pod", unclear_is_failed, "one pod", LOST, Mood(WRITES, (0, 1, 2), 2, 0.3)),
    Break("the fence", give_back_without_fence, "two operators, two big pods", f"{NOTHING}|{LOST}", HASTY),
    Break("the version in the Binding", without("resourceVersion"), "two operators, two big pods", NOTHING, HASTY),
    Break("UID and version in the Binding", without("uid", "resourceVersion"), "a name returns", NOTHING, LATE),
    Break(
        "the second look at the quota",
        quota_looked_at_once,
        "two operators and a quota",
        "beyond the quota",
        plan=(
            Rule("scheduler 2: Filter uid-a", until=("scheduler 2: sees MODIFIED pod a",)),
            Rule("scheduler 2: Filter uid-b", way=ON_NODE_B),
            Rule("operator 2: sees MODIFIED card", until=("operator 2: bind pod default/b",)),
        ),
    ),
    Break("the rule on totals", no_totals, "two operators, two pods", "over-allocated"),
    Break("the tests in patches", untested_patches, "equal pods come and go", LOST, Mood(WRITES, (1,), 2, 0.3)),
    Break("the age of news", old_news_believed, "two pods on one card", "older state", LATE),
    Break("the ledger before the Binding", bound_before_entered, "one pod", NOTHING),
    Break("the truth of an answer", success_always, "one pod", "is answered with success"),
    Break(
        "the question before the Binding",
        bound_without_a_question,
        "one pod",
        "for which nobody waits",
        plan=(Rule("operator 1: write status", until=("scheduler 1: hears of Bind",)), FILTER_AFTER_BINDING),
    ),
    Break(
        "the Binding before the answer",
        failed_before_it_is_known,
        "one pod",
        "was answered with failure",
        plan=(
            Rule("operator 1: bind pod", until=("scheduler 1: hears of Bind",)),
            Rule("scheduler 1: writes status", way=2),
            FILTER_AFTER_BINDING,
        ),
    ),
    Break(
        "another look after a wait",
        looked_at_once,
        "etcd is restored while a pod leaves",
        NOTHING,
        plan=(
            Rule("operator 1: sees MODIFIED card", act=True),
            Rule("operator 1: hears of write status", until=("scheduler 1: writes status",)),
            Rule("scheduler 1: Filter uid-b", until=("scheduler 1: sees DELETED",), act=True),
        ),
    ),
    Break("a writer without defects", writer_with_a_defect, "one pod", "has logged a defect"),
    Break(
        "the patience with what others have left",
        reserved_like_any_other,
        "a more important pod comes",
        "is taken back",
        plan=(H_COMES, Rule("operator 1: annotate pod default/h", act=True)),
    ),
    Break(
        "the time that is counted anew",
        deadlines_believed,
        "the Lease moves to a machine whose clock is ahead",
        "was deleted by force and may run",
        plan=(H_COMES, Rule("operator 1: sees MODIFIED card", skip=1, act=True)),
    ),
    Break(
        "the time that no jump of a clock changes",
        deadlines_believed,
        "a clock jumps while a share ends",
        "was deleted by force and may run",
        plan=(H_COMES, *(Rule("operator 1: sees MODIFIED card", skip=1, act=True),) * 2),
    ),
    Break(
        "the claim before the eviction",
        evicted_before_claimed,
        "a more important pod comes",
        "is told to leave",
        plan=(H_COMES,),
    ),
    Break("the wake-up", no_wake_up, "two pods for one card", "there is room for it"),
    Break(
        "taking over what another attempt has entered",
        memory_believed,
        "two operators, one pod",
        f"{NOTHING}|{LOST}",
        plan=(
            REFUSED_ONCE,
            Rule("scheduler 2: Filter", until=("operator 2: sees MODIFIED card",)),
            Rule("operator 2: read pod", until=("operator 1: annotate pod",)),
            Rule("operator 2: sees MODIFIED card", skip=1, until=("operator 2: bind pod",)),
        ),
    ),
    Break(
        "another look at what was entered before",
        never_looked_again,
        "two operators, one pod",
        f"{NOTHING}|{LOST}",
        plan=(
            Rule("operator 1: bind pod", until=("operator 2: hears of write status",) * 2, way=9),
            Rule("operator 2: bind pod", until=("operator 1: annotate pod",)),
            Rule("operator 2: bind pod", skip=1, until=("operator 1: .*removes no",)),
        ),
    ),
    Break(
        "the names of attempts",
        attempts_of_one_name,
        "one pod",
        f"{NOTHING}|{LOST}",
        plan=(
            REFUSED_ONCE,
            Rule("operator 1: write status of card gpu-node-a-0 (makes no. 0 releasing)", way=2),
            Rule("operator 1: write status of card gpu-node-a-0 (removes no. 0)", way=2),
        ),
    ),
    Break(
        "marks on shares, and the names of attempts",
        marked_shares_used,
        "two operators, one pod",
        f"{NOTHING}|{LOST}",
        plan=(
            REFUSED_ONCE,
            STATUS_LATE,
            Rule("operator 2: bind pod", until=("operator 1: annotate pod",)),
            Rule(
                "operator 1: write status of card gpu-node-a-0 (removes",
                until=("operator 2: hears of read pod", "operator 2: hears of read card"),
            ),
        ),
    ),
]


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> Iterator[None]:
    with prepared():
        yield


RARELY = {"the look at the pod"}
"""What only one in hundreds of lives notices. test_races.py has an order of each run that does."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(broken, id=broken.what, marks=pytest.mark.long if broken.what in RARELY else ())
        for broken in BREAKS + FAULT_BREAKS + GANG_BREAKS
    ],
)
def test_a_missing_safeguard_is_noticed(broken: Break, monkeypatch: Patch) -> None:
    broken.take_away(monkeypatch)
    assert any(re.search(broken.symptom, life.violation) for life in lives(broken))
