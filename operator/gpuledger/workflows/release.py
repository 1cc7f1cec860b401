"""The end of a pod's shares.

A pod that is gone, finished or being deleted can't be bound any more: its shares are released. A pod that waits for a
node is another matter. A Binding for it may be on its way, from an attempt whose answer was lost or from another
operator, and it must not arrive after the shares are gone. So these are taken back in three steps, the *fence*:

1. the ledger marks the pod's holders as `releasing`: no attempt can rely on them from here on;
2. an annotation is patched on the pod, which changes its resourceVersion: a Binding carries the one that was read
   before the holders were seen in the ledger, so the API server refuses every Binding that is still under way;
3. the answer shows the pod: without a node, its marked holders are removed; bound, they are allocated again.

And a share of a bound pod ends when its processes have: its kubelet has said so in the pod's status, or the node's
agent reports it. Where neither has, of a pod that is gone or called failed, the shares stay for as long as the pod
may take to end and a while longer: a kubelet that was cut off, and finds the pod missing, gives it that time, too. That
is counted from when this process first saw such a share. The deadline in the ledger is for people: it comes from
another machine's clock.

Of a pod whose shares are judged only a few fields are kept: many are at once, and users choose how long they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from math import inf
from typing import Protocol
from uuid import uuid4

from attrs import define

from gpuledger.formats.annotations import RELEASED_ANNOTATION, read_ends
from gpuledger.formats.kubernetes.pod import (
    annotated_cards,
    bound_node,
    has_ended,
    is_being_deleted,
    is_finished,
    not_admitted,
)
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.clock import Clock, rfc3339
from gpuledger.model.errors import BadInput, EventReason, GpuledgerError, Invalid, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.request import MAX_CARDS, PodRequest
from gpuledger.model.share import Holder, HolderState, Pod, Share, fitting_variant
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import AgentChanged, EndsReported, PodNotBound
from gpuledger.workflows.inventory import AgentPods
from gpuledger.workflows.journal.entries import Bequest
from gpuledger.workflows.lifecycles import Deadlines
from gpuledger.workflows.resource_claims.writes import ClaimEnds, claims_of
from gpuledger.workflows.tasks import KeyedWorker, sleep_backoff

logger = logging.getLogger(__name__)


class EndReport(Enum):
    """The state of a pod that has ended, the worst last."""

    ENDED = auto()
    """Nothing of it runs."""
    NO_AGENT = auto()
    """No agent will report it: its node is gone, or has no agent that does."""
    NOT_REPORTED = auto()
    """The node's agent answers, and has not spoken of it."""
    AGENT_AWAY = auto()
    """The node's agent is not Ready, so what it has not said means nothing."""
    RUNS = auto()
    """Processes or containers of it are left."""


def end_report_of(reported: Mapping[str, bool] | None, pod_uid: str) -> EndReport:
    """Return the report on a pod in a node's annotation; None means that the node has none."""
    if reported is None:
        return EndReport.NO_AGENT
    runs = reported.get(pod_uid)
    return EndReport.NOT_REPORTED if runs is None else EndReport.RUNS if runs else EndReport.ENDED


@define(eq=False, slots=False)
class TerminationReports(Component):
    """Remembers it by node. A node's word counts for the shares on its own cards only."""

    _agents: AgentPods

    def __attrs_post_init__(self) -> None:
        self._reported: dict[str, dict[str, bool]] = {}  # node name -> UID of a pod -> whether anything of it runs
        self._events.on(AgentChanged, self._agent_has_changed)

    def observe_node(self, node: Json) -> None:
        """Observe a Node as it is now."""
        name = node["metadata"]["name"]
        before = self._reported.get(name)
        try:
            reported = read_ends(node)
        except BadInput as error:  # its agent corrects it
            logger.warning("node %s: %s", name, error)
            return
        if reported is None:
            self._reported.pop(name, None)
        else:
            self._reported[name] = reported
        if reported != before:
            self._events.tell(EndsReported(name))

    def forget_node(self, node_name: str) -> None:
        """Record that a node is gone."""
        if self._reported.pop(node_name, None) is not None:
            self._events.tell(EndsReported(node_name))

    def end_report(self, node_name: str, pod_uid: str) -> EndReport:
        """Return the report on a pod that had a share on a node."""
        report = end_report_of(self._reported.get(node_name), pod_uid)
        is_away = report is EndReport.NOT_REPORTED and self._agents.not_ready(node_name)
        return EndReport.AGENT_AWAY if is_away else report

    def _agent_has_changed(self, event: AgentChanged) -> None:
        if event.node_name in self._reported:
            self._events.tell(EndsReported(event.node_name))


Held = Sequence[tuple[Card, Holder]]

SPOKEN_WITHIN_S = 15.0
"""How long at least an agent has to say that something of a pod runs. It looks for five seconds before it does."""

DEADLINE_ROUNDING_S = 1.0
"""A deadline in the ledger has whole seconds."""


class Ends(Protocol):
    """Reports on the processes that are left of a pod on its node."""

    def end_report(self, node_name: str, pod_uid: str) -> EndReport:
        """Return the report on a pod that had a share on a node."""


@dataclass(frozen=True, slots=True)
class ReleaseTimes:
    """How long shares stay where no agent speaks."""

    delay_s: float
    """Beyond the pod's own time to end."""
    longest_s: float
    """In all, whatever the pod's time to end."""
    by_deadline: bool = False
    """Whether the deadline in the ledger counts instead: for an operator that did not see it being written."""

    def wait_s(self, grace_s: int) -> float:
        """Return how long the shares of a pod stay that may take so long to end."""
        return min(grace_s + self.delay_s, self.longest_s)


class ReleaseDeadlines:
    """Counts the time of shares that are to end, by the loop's clock."""

    def __init__(self, *, ends: Ends, times: ReleaseTimes, clock: Clock) -> None:
        self._clock = clock
        self._ends = ends
        self._times = times
        self._until_s: dict[str, float] = {}  # pod UID -> when its shares end, by the loop's clock, without a report

    def __contains__(self, pod_uid: str) -> bool:
        return pod_uid in self._until_s

    def pods(self) -> list[str]:
        """Return the UIDs of the pods whose shares are to end."""
        return list(self._until_s)

    def forget(self, pod_uid: str) -> None:
        """Record that the shares have ended, or stay."""
        self._until_s.pop(pod_uid, None)

    def wait_s(self, pod_uid: str, held: Held) -> float:
        """Return after what time the pod's shares end; 0: now; infinite: only when another word is known of it."""
        now_s = self._clock.now_s()
        report = self.end_report(pod_uid, held)
        least_s = 0.0 if report is EndReport.NO_AGENT else SPOKEN_WITHIN_S
        until_s = self._until_s.setdefault(pod_uid, now_s + max(self._first_wait_s(held), least_s))
        if report is EndReport.ENDED:
            return 0.0
        if report in (EndReport.RUNS, EndReport.AGENT_AWAY) and until_s <= now_s:
            return inf
        return max(0.0, until_s - now_s)

    def end_report(self, pod_uid: str, held: Held) -> EndReport:
        """Return the report on a pod; where its shares are on several nodes, the worst."""
        reports = [self._ends.end_report(card.node_name, pod_uid) for card, _ in held]
        return max(reports, key=lambda report: report.value, default=EndReport.NO_AGENT)

    def deadline(self, pod_uid: str) -> str:
        """Return when the pod's shares end without a report, RFC 3339, for people."""
        wait_s = self._until_s[pod_uid] - self._clock.now_s()
        return rfc3339(self._clock.wall() + timedelta(seconds=wait_s))

    def _first_wait_s(self, held: Held) -> float:
        if self._times.by_deadline:
            now = self._clock.wall()
            left = [(datetime.fromisoformat(h.deadline) - now).total_seconds() for _, h in held if h.deadline]
            if left:
                return max(left) + DEADLINE_ROUNDING_S
        grace_s = max((holder.pod.grace_s for _, holder in held), default=0)
        return self._times.wait_s(grace_s)


@dataclass(frozen=True, slots=True)
class JudgedPod:
    """A pod as it was read."""

    node_name: str
    is_being_deleted: bool
    has_ended: bool
    is_finished: bool
    cards: frozenset[str]
    """UUIDs in its annotation, which users can write."""
    request: PodRequest | None
    """None if it can't be read."""
    not_admitted: str
    """Why its kubelet has not admitted it to the node, and never will; empty for others."""


def judged(read_request: Callable[[Json], PodRequest | None], pod: Json) -> JudgedPod:
    """Return the facts about a pod that decide whether its shares end."""
    request = None
    with suppress(BadInput):
        request = read_request(pod)
    leaves, cards = is_being_deleted(pod), annotated_cards(pod)
    return JudgedPod(bound_node(pod), leaves, has_ended(pod), is_finished(pod), cards, request, not_admitted(pod))


def rightful(holders: Sequence[tuple[Card, Holder]], pod: JudgedPod) -> set[str]:
    """Return the cards that a bound pod has a right to: those on its node, as many as it asks for.

    Two operators that bind one pod at once can leave it twice what it asks for. Only then does its annotation decide,
    which came with the one Binding that was accepted; so no user can give up a share by editing an annotation.
    """
    here = [holder.share for card, holder in holders if card.node_name == pod.node_name]
    named = [share for share in here if share.uuid in pod.cards]
    if pod.request is not None and not fitting_variant(here, pod.request) and fitting_variant(named, pod.request):
        here = named
    return {share.uuid for share in here}


AFTER_A_RESTART = (
    "When a node restarts, its kubelet is back before the GPU agent, and fails pods that count GPUs in their limits "
    "for good; pods with ResourceClaims start again on their cards"
)

PODS_AT_ONCE = 64

REMOVALS = 3
"""How often a pod that has ended is taken off its cards, as they are then; the next look at it goes on."""

SUSPECT_DELAY_S = 10.0
"""How long a holder may be in the ledger before its pod has been seen bound. Longer than a bind takes when all is well;
when it takes longer, taking the share back makes the bind start again, and does no harm."""


@dataclass(slots=True)
class _Bound:
    """The observed state of a bound pod."""

    ended: bool = False
    """Its kubelet has said that nothing of it runs, even if it is gone before it is looked at."""
    cards: set[str] = field(default_factory=set)
    """UUIDs of the cards that the pod was given, or found to have a right to. An entry on another card is checked."""


@define(eq=False, slots=False)
class PodReleaser(Component):
    """Takes shares out of the ledger whose pods have no right to them any more, and no others."""

    _departures: ReleaseDeadlines
    _deadlines: Deadlines
    _claim_ends: ClaimEnds

    def __attrs_post_init__(self) -> None:
        # UID of a pod that is being bound, so that its shares may not be judged -> whether they are to be afterwards
        self._binding: dict[str, bool] = {}
        self._bound: dict[str, _Bound] = {}  # UID of a bound pod that was not seen to end -> what was seen of it
        self._timers: dict[str, asyncio.TimerHandle] = {}  # pod UID -> when to look at it again
        self.worker = KeyedWorker(self._judge, PODS_AT_ONCE, self._is_active)
        self._events.on(EndsReported, self._node_has_reported)

    @contextmanager
    def leaves_alone(self, pod_uid: str) -> Iterator[None]:
        """Judge nothing of a pod for a while, as it is being bound. Deferred judgements follow at the end."""
        self._binding.setdefault(pod_uid, False)
        try:
            yield
        finally:
            if self._binding.pop(pod_uid, False):
                self.recheck(pod_uid)

    # Called with what the watches show.

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """Observe a bound pod: once it is finished, its shares are released."""
        self._counts.pods_examined.inc()
        uid = pod["metadata"]["uid"]
        holders = self._ledger.holders.of(uid)
        if is_finished(pod):
            wrong = bool(holders)
            if has_ended(pod):
                self._note_ended(uid)
        else:
            self._note_bound(uid, annotated_cards(pod))
            wrong = bool(holders) and _differ(holders, pod)
        if wrong:
            self.worker.mark(uid)

    def known_bound(self) -> set[str]:
        """Return the UIDs of the bound pods that were not seen to end, and of all that have shares."""
        return set(self._ledger.holders.uids()) | self._bound.keys()

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """Record that a pod is gone. A hint only: the API server is asked before anything is released."""
        if last is not None:
            self._counts.pods_examined.inc()
            if has_ended(last):  # it may be the first to say so
                self._note_ended(pod_uid)
        self.recheck(pod_uid)

    def _node_has_reported(self, event: EndsReported) -> None:
        """Record that another word may be known of pods of a node whose shares are to end."""
        for uid in self._departures.pods():
            if any(card.node_name == event.node_name for card, _ in self._ledger.holders.of(uid)):
                self.recheck(uid)

    def recheck(self, pod_uid: str) -> None:
        """Find out whether a pod that holds shares still has a right to them."""
        if pod_uid in self._binding:
            self._binding[pod_uid] = True
        elif self._ledger.holders.of(pod_uid):
            self.worker.mark(pod_uid)
        else:
            self._bound.pop(pod_uid, None)

    def observe_card(self, entry: CardEntry) -> None:
        """Look, in a while, at holders whose pods are not seen to be bound: what a crash or a lost write has left.

        Also at what is reserved for a pod that waits. The pod may be gone: another operator that was told so late can
        have written this after it, and have ended.
        """
        for uid, holder in entry.holders.items():
            is_reserved = holder.state is HolderState.RESERVED
            if uid not in self._timers and (is_reserved or not self._is_in_order(uid, holder)):
                self._look_again(uid, SUSPECT_DELAY_S)

    def _seconds_to(self, holder: Holder) -> float:
        """Return until when a share is reserved for a pod that is not bound yet; 0 for all others."""
        return max(0.0, self._deadlines.seconds_left(holder)) if holder.state is HolderState.RESERVED else 0.0

    def _note_bound(self, pod_uid: str, cards: AbstractSet[str]) -> None:
        bound = self._bound.setdefault(pod_uid, _Bound())
        # Users can write the annotation, again and again.
        bound.cards = {*cards} if len(bound.cards) > MAX_CARDS else bound.cards | cards

    def _note_ended(self, pod_uid: str) -> None:
        self._bound.pop(pod_uid, None)
        if self._ledger.holders.of(pod_uid):
            self._bound[pod_uid] = _Bound(ended=True)

    def _is_in_order(self, pod_uid: str, holder: Holder) -> bool:
        if pod_uid in self._binding:
            return True
        bound = self._bound.get(pod_uid)
        if bound is None or bound.ended or pod_uid in self._departures:
            return False
        return holder.state is HolderState.ALLOCATED and holder.share.uuid in bound.cards

    def _look_again(self, pod_uid: str, wait_s: float) -> None:
        """Look at a pod later; a look that comes earlier anyway will set the next one."""
        timer = self._timers.get(pod_uid)
        if timer is None or timer.when() > self._clock.now_s() + wait_s:
            if timer:
                timer.cancel()
            self._timers[pod_uid] = self._tasks.after(wait_s, self._due, pod_uid)

    def _due(self, pod_uid: str) -> None:
        del self._timers[pod_uid]
        if not self._ledger.holders.of(pod_uid):
            self._departures.forget(pod_uid)
            self._bound.pop(pod_uid, None)
        elif pod_uid in self._binding:
            self._look_again(pod_uid, SUSPECT_DELAY_S)
        elif not all(self._is_in_order(pod_uid, holder) for _, holder in self._ledger.holders.of(pod_uid)):
            self.worker.mark(pod_uid)

    # Judging.

    async def give_back(self, pod: Pod, shares: Sequence[Share], unbound: AbstractSet[str] = frozenset()) -> None:
        """Take back the shares of a failed bind, however long the API server takes.

        `unbound` are the attempts that have certainly not bound the pod; with what others have entered it may have run.
        Returns when the ledger agrees with the pod.
        """
        attempt = 0
        while True:
            try:
                await self._mark([Holder(pod, share) for share in shares])
                if self._ledger.holders.of(pod.uid):
                    await self._settle(pod, await self._read(pod), lambda holder: holder.attempt not in unbound)
                return
            except GpuledgerError as error:
                logger.warning("pod %s: releasing its shares failed, retrying: %s", pod, error)
                await sleep_backoff(attempt, error)
                attempt += 1

    async def _judge(self, pod_uid: str) -> None:
        holders = self._holders(pod_uid)
        if not holders:
            return
        pod = holders[0].pod
        found = await self._read(pod)
        if pod_uid in self._binding:
            self._binding[pod_uid] = True
        else:
            # The operator that has marked a share may know more of the pod: another one, or this one before a restart.
            marked = any(holder.state is HolderState.RELEASING for holder in holders)
            bound = self._bound.get(pod_uid)
            may_run = marked or bound is None or not bound.ended
            await self._settle(pod, found, lambda holder: may_run and holder.state is not HolderState.RESERVED)

    async def _settle(self, pod: Pod, found: JudgedPod | None, may_run: Callable[[Holder], bool]) -> None:
        """Make the ledger agree with a pod that was read; None if it is gone.

        `may_run` tells whether a pod that is gone may still run on a holder's card.
        """
        marked: list[Holder] = []  # before the fence: a newer attempt may have entered, and bound, what comes later
        if found is not None and not found.node_name and not found.is_being_deleted:
            left_s = [self._seconds_to(holder) for holder in self._holders(pod.uid)]
            if all(left_s):  # others have left these cards for it: until its time is over, they are its own
                if left_s:
                    self._look_again(pod.uid, max(left_s) + SUSPECT_DELAY_S)
                return
            await self._mark(self._holders(pod.uid))
            marked = [holder for holder in self._holders(pod.uid) if holder.state is HolderState.RELEASING]
            found = await self._fence(pod)
        if found is None:
            await self._release_gone(pod.uid, may_run)
        elif found.is_being_deleted and not found.node_name:
            await self._remove(pod.uid, was_bound=False)
        elif not found.node_name:
            self._events.tell(PodNotBound(pod.uid))
            await self._remove(pod.uid, marked, was_bound=False)
        elif found.has_ended:
            if found.not_admitted:
                self._event_recorder.post_pod_event(
                    pod, True, EventReason.NOT_ADMITTED, f"{found.not_admitted}. {AFTER_A_RESTART}"
                )
            await self._remove(pod.uid, why=found.not_admitted)
        elif found.is_finished:
            await self._release_gone(pod.uid, may_run)
        else:
            await self._keep(pod.uid, found)

    async def _read(self, pod: Pod) -> JudgedPod | None:
        found = await self._store.pod_now(pod)
        return None if found is None else judged(self._formats.request, found)

    async def _fence(self, pod: Pod) -> JudgedPod | None:
        """Make every Binding of the pod that is under way fail; return the pod, None if it is gone."""
        try:
            return judged(self._formats.request, await self._store.annotate_pod(pod, RELEASED_ANNOTATION, uuid4().hex))
        except NotFound:
            return None
        except Invalid:  # a policy refuses
            found = await self._read(pod)
            if found is not None and not found.node_name:
                raise
            return found

    async def _release_gone(self, pod_uid: str, may_run: Callable[[Holder], bool]) -> None:
        """Release the shares of a pod that is gone or called failed, later if it may still run on its node.

        A pod that ends in good order is seen finished before it is deleted. One that was deleted by force can have
        processes on the card until its kubelet hears of it, and longer.
        """
        idle = [holder for holder in self._holders(pod_uid) if not may_run(holder)]
        if idle:
            await self._remove(pod_uid, idle)
        if not self._holders(pod_uid):
            return
        wait_s = self._departures.wait_s(pod_uid, self._ledger.holders.of(pod_uid))
        if wait_s <= 0:
            await self._remove(pod_uid)
            return
        endless = [holder for holder in self._holders(pod_uid) if not holder.deadline]
        await self._mark(endless, self._departures.deadline(pod_uid))
        if wait_s < inf:
            self._look_again(pod_uid, wait_s)

    async def _mark(self, holders: Sequence[Holder], deadline: str | None = None) -> None:
        """Have the ledger say that a pod is on its way out. It still counts.

        With a deadline if the pod is gone: without one, it can still turn out to be bound, and begin to run.
        """
        marked = [replace(holder, state=HolderState.RELEASING, deadline=deadline) for holder in holders]
        await asyncio.gather(*(self._journal.change(holder) for holder in marked))

    async def _keep(self, pod_uid: str, found: JudgedPod) -> None:
        """Leave a bound pod what it is bound with, and nothing else."""
        holders = self._ledger.holders.of(pod_uid)
        kept = rightful(holders, found)
        self._note_bound(pod_uid, kept)
        for _, holder in holders:
            uuid = holder.share.uuid
            if uuid not in kept:
                logger.warning("pod %s is bound without its share of card %s, which is released", holder.pod, uuid)
                await self._journal.remove(uuid, pod_uid, holder, is_charged=False)
            elif holder.state is not HolderState.ALLOCATED:
                await self._journal.change(replace(holder, state=HolderState.ALLOCATED, deadline=None))

    async def _remove(
        self, pod_uid: str, only: Sequence[Holder] | None = None, was_bound: bool = True, why: str = ""
    ) -> None:
        """Take the pod off its cards: it can't be bound any more.

        With `only`, off those cards where nothing has changed since: it may be bound with what is entered now.
        """
        before = self._ledger.holders.of(pod_uid)
        why = why or ("the pod has ended, or is gone" if was_bound else "the pod was not bound")
        if only is None:
            for _ in range(REMOVALS):  # another pod may hand over its part of a claim, which goes to the next one
                await self._take_off(self._holders(pod_uid), was_bound)
        else:
            before = [each for each in before if each[1] in only]
            await self._take_off(only, was_bound)
        left = self._ledger.holders.of(pod_uid)
        self._trail.released(before, left, why)
        if left:
            return  # those of a newer attempt, or of another operator
        self._counts.releases.inc()
        self._bound.pop(pod_uid, None)
        self._departures.forget(pod_uid)
        timer = self._timers.pop(pod_uid, None)
        if timer:
            timer.cancel()

    async def _take_off(self, holders: Sequence[Holder], was_bound: bool) -> None:
        """Take a pod off its cards where it has these shares; what others use by a claim goes to them."""
        heirs = await self._claim_ends.left_by(holders[0].pod, holders, was_bound) if claims_of(holders) else {}
        writes = []
        for holder in holders:
            found = [heirs[claim.uid] for claim in claims_of([holder]) if claim.uid in heirs]
            inheriting = [each for each in found if each.inherits(holder.share.uuid, self._holders(each.pod.uid))]
            if holder.share.exclusive:  # whoever has the card alone after this is one pod
                inheriting = [each for each in inheriting if each.pod == inheriting[0].pod]
            if inheriting:
                bequests = [Bequest(heir.pod, heir.claim.uid, heir.claim_name) for heir in inheriting]
                writes.append(self._journal.hand_over(holder, bequests, was_bound))
            else:
                writes.append(self._journal.remove(holder.share.uuid, holder.pod.uid, holder, was_bound))
        await asyncio.gather(*writes)

    def _holders(self, pod_uid: str) -> list[Holder]:
        return [holder for _, holder in self._ledger.holders.of(pod_uid)]


def _differ(holders: Sequence[tuple[Card, Holder]], pod: Json) -> bool:
    """Return whether a bound pod's shares need a closer look. The annotation only hints at it: users can write it."""
    if any(card.node_name != bound_node(pod) or holder.state is HolderState.RELEASING for card, holder in holders):
        return True
    return {card.uuid for card, _ in holders} != annotated_cards(pod)
