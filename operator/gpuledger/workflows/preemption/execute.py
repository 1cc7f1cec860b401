"""Carries preemptions out, from what the ledger shows: so that any operator can go on with what another has begun.

A claim says which share a pod is promised on a card, and whom gpuledger evicts for it. Each look at a pod does what can
be done at that moment: evict who is still there, reserve what is free, call the pod when all its cards are reserved. A
pod that is bound or gone, and one whose time is over, loses what it is promised.

Each victim is evicted once, with the reason. kube-scheduler learns where room is being made by the pod's
`status.nominatedNodeName`. Cards are promised in the ledger; CPU, memory and ports are kube-scheduler's. What the
victims free of these, and what was free when they were chosen, it keeps from pods of the same or lower priority on a
node that a pod is nominated for. It is a hint: kube-scheduler may clear it, and nothing of ours relies on it.

Room is kept for a pod until a deadline that stands in the ledger. The wall clock of another machine is another one, and
one's own can be set while a pod waits. So a deadline is looked at once, when this process sees it first; from then on,
the time that was left is counted by the loop's clock.

Rooms that are made for a gang's members: each pod has its own, and none is of use without the others. Which of them
belong together follows from the pending members and from the ledger, so any operator can go on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from attrs import define

from gpuledger.formats.kubernetes.pod import is_finished, nominated_node, resource_version
from gpuledger.ledger.entry import CardEntry
from gpuledger.ledger.seats import FOREVER, Seat, Strength, elsewhere, fullest_node
from gpuledger.model.card import Card
from gpuledger.model.clock import Backoff
from gpuledger.model.errors import ApiError, EventReason, NotFound, ShareRefused
from gpuledger.model.json_object import Json
from gpuledger.model.share import Claim, Holder, HolderState, Placement, Pod, fitting_variant
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.binding.bind_pod import PodBinder
from gpuledger.workflows.context import Component
from gpuledger.workflows.evictions import Asked, ask_to_leave
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.members import GangState, Member
from gpuledger.workflows.lifecycles import Deadlines, PodLifecycles
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.preemption.find_victims import ChosenVictims
from gpuledger.workflows.reporting import PreemptionOutcome
from gpuledger.workflows.tasks import KeyedWorker, gather_all


@define(eq=False, slots=False)
class GangRooms(Component):
    """Looks at what is claimed and reserved now."""

    _gangs: Gangs

    def __attrs_post_init__(self) -> None:
        self._members = self._gangs.members

    def gang_of(self, pod_uid: str) -> GangState | None:
        """Return the gang for which a pod waits, None if it waits for none."""
        state = self._members.of(pod_uid)
        return state if state is not None and pod_uid in state.pending and state.missing > 0 else None

    def is_being_claimed(self, pod_uid: str) -> bool:
        """Return whether claims of a pod, or of others of its gang, are on their way to the API server."""
        state = self.gang_of(pod_uid)
        uids = (pod_uid, *(state.pending if state else ()))
        return any(map(self._ledger.promises.is_under_way, uids))

    def why_to_end(self, pod_uid: str) -> str:
        """Return why room for a pod is of no use any more, empty if nothing is wrong with its gang."""
        state = self.gang_of(pod_uid)
        if state is None or self._have_room(state, claimed=True) >= state.missing:
            return ""
        return "others of its gang have no room, or are gone"

    def keep(self, state: GangState) -> bool:
        """Hold the reserved shares of the members once they suffice for all missing ones; return whether they do.

        Refused members are requeued then.
        """
        if self._have_room(state, claimed=False) < state.missing:
            return False
        for member in state.pending.values():
            uid = member.pod.uid
            reserved = [each for each in self._ledger.holders.of(uid) if each[1].state is HolderState.RESERVED]
            if reserved and self._ledger.seats.of(uid) is None and self._has_room(member, claimed=False):
                shares = tuple(holder.share for _, holder in reserved)
                placement = Placement(reserved[0][0].node_name, shares, member.request.host)
                with suppress(ShareRefused):  # the card is gone; the next look shows it
                    seat = Seat(uid, placement, FOREVER, Strength.WAITING, group=state.name, priority=state.priority)
                    self._ledger.seats.take(seat)
        self._gangs.requeue(state)
        return True

    def _have_room(self, state: GangState, claimed: bool) -> int:
        return sum(self._has_room(member, claimed) for member in state.pending.values())

    def _has_room(self, member: Member, claimed: bool) -> bool:
        uid = member.pod.uid
        if self._ledger.seats.of(uid) is not None:
            return True
        shares = [holder.share for _, holder in self._ledger.holders.of(uid)]
        if claimed:
            shares += [claim.share for _, claim in self._ledger.promises.claims_of(uid)]
        return bool(shares) and fitting_variant(shares, member.request) is not None


logger = logging.getLogger(__name__)


CARDS_NAMED = 2
"""In the Event of a victim, by their UUIDs."""


@define(eq=False, slots=False)
class Evictor(Component):
    """Evicts the victims of promised shares."""

    _lives: PodLifecycles
    _leavers: ChosenVictims

    def forget(self, pod_uid: str) -> None:
        """Record that no pod leaves for a pod any more."""
        self._leavers.forget(pod_uid)

    async def evict(self, claims: Sequence[tuple[Card, Claim]]) -> bool:
        """Evict the victims that have not been evicted yet; return whether all of them leave. Raises ApiError.

        Not while the pod could not come to the node: no pod is evicted for nothing.
        """
        if not claims:
            return True
        if not all(self.may_come(card.node_name) for card, _ in claims):
            return True
        steps = []
        pod, victims = claims[0][1].holder.pod, self._all_victims(claims)
        self._leavers.choose(pod, victims)
        for uid, victim in victims.items():
            if not self._lives.is_leaving(uid) and self._leavers.is_to_be_evicted(pod, uid):
                uuids = [card.uuid for card, claim in claims if uid in claim.victims and uid in self._on(card)]
                steps.append(self._evict_one(pod, victim, uuids))
        return False not in await gather_all(steps)

    def may_come(self, node_name: str) -> bool:
        """Return whether a node takes pods now. When one that does not opens again, the ledger changes."""
        return self._ledger.offer(node_name) is not None and not self._ledger.hangs(node_name)

    def others_leave(self, claim: Claim, entry: CardEntry) -> bool:
        """Return whether the victims of a claim that are not on its card leave, or are asked to.

        Once the claim is a share, nothing would show that they have to leave with the rest of their gang.
        """
        others = (uid for uid in claim.victims if uid not in entry.holders and self._ledger.holders.of(uid))
        return all(self._lives.is_leaving(uid) or self._leavers.is_evicted(uid) for uid in others)

    def is_free(self, card: Card, claim: Claim) -> bool:
        """Return whether the promised share can be entered now: it fits, and its other victims are terminating."""
        entry = self._ledger.entry(card.uuid)
        return entry is not None and entry.open and entry.takes_now(claim) and self.others_leave(claim, entry)

    def could_come(self, card: Card, claim: Claim) -> bool:
        """Return whether the promised share fits once all victims, and all pods that leave anyway, have left."""
        entry = self._ledger.entry(card.uuid)
        if entry is None or not entry.open:
            return True  # others judge that

        def may_leave(uid: str, holder: Holder) -> bool:
            settled = holder.state is HolderState.ALLOCATED and self._lives.is_bound(uid)
            return uid in claim.victims or not settled or bool(self._lives.leaves_s(uid))

        return entry.could_take(claim, may_leave)

    def victims(self, claims: Sequence[tuple[Card, Claim]]) -> dict[str, Pod]:
        """Return the victims that are still on their cards."""
        found: dict[str, Pod] = {}
        for card, claim in claims:
            holders = self._on(card)
            found |= {uid: holders[uid].pod for uid in claim.victims if uid in holders}
        return found

    def _on(self, card: Card) -> Mapping[str, Holder]:
        entry = self._ledger.entry(card.uuid)
        return entry.holders if entry is not None else {}

    def _all_victims(self, claims: Sequence[tuple[Card, Claim]]) -> dict[str, Pod]:
        """Return the same, and those of their gangs that are listed with them, on whatever nodes."""
        listed = {uid: self._ledger.holders.of(uid) for _, claim in claims for uid in claim.victims}
        return self.victims(claims) | {uid: holders[0][1].pod for uid, holders in listed.items() if holders}

    async def _evict_one(self, pod: Pod, victim: Pod, uuids: Sequence[str]) -> bool:
        """Return whether the victim leaves. If not, a budget forbids it now, or it is gone; the ledger will tell."""
        leaves = False
        try:
            leaves = await self._is_asked_to_leave(pod, victim)
        finally:
            if not leaves:
                self._leavers.was_not_evicted(pod, victim.uid)
        if leaves:
            self._tell(pod, victim, uuids)
        return leaves

    async def _is_asked_to_leave(self, pod: Pod, victim: Pod) -> bool:
        why = f"preempted for pod {pod} of priority {pod.priority}"
        anyway = "PreemptionByScheduler" if self._settings.preempt_despite_budgets else ""
        asked = await ask_to_leave(self._store, self._clock, victim, why, despite_budgets_as=anyway)
        if asked is Asked.BUDGET_FORBIDS:
            logger.info("pod %s can't be evicted now: a PodDisruptionBudget forbids it", victim)
        return asked is Asked.LEAVES

    def _tell(self, pod: Pod, victim: Pod, uuids: Sequence[str]) -> None:
        self._counts.evictions.inc()
        lost = [each for each in self._ledger.holders.of(victim.uid) if not uuids or each[0].uuid in uuids]
        node_name = lost[0][0].node_name if lost else ""
        why = f"for pod {pod} of priority {pod.priority}"
        self._trail.note(RecordKind.EVICTED, victim, node_name, [holder.share for _, holder in lost], why)
        cards = f"cards {', '.join(uuids)}" if len(uuids) <= CARDS_NAMED else f"{len(uuids)} cards of node {node_name}"
        place = f"its place on {cards}" if uuids else "the place of others of its gang"
        sentence = f"evicted: pod {pod} of priority {pod.priority} needs {place}"
        self._event_recorder.post_pod_event(victim, True, EventReason.PREEMPTED, sentence)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Between two nominations of one pod that are made again: kube-scheduler tries a pod when its nomination changes, and
clears it where the pod does not fit."""


@dataclass(slots=True)
class _Pause:
    """When a nomination may be made again, by the clock."""

    until_s: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))


@dataclass(frozen=True, slots=True)
class _Shown:
    """The nomination in one version of a pod."""

    version: int
    node_name: str


@define(eq=False, slots=False)
class Nominator(Component):
    """Names the nodes on which the operator makes room, with a write only where it changes something."""

    def __attrs_post_init__(self) -> None:
        self._named: dict[str, str] = {}  # pod UID -> node that this operator has named for it
        self._shown: dict[str, _Shown] = {}  # pod UID -> what is known of it, once there was a nomination
        self._pauses: dict[str, _Pause] = {}  # pod UID -> since its nomination was made again

    def shows(self, pod: Json) -> None:
        """Observe a pod without a node, as a watch or a list shows it; that can be older than our own write."""
        uid, found = pod["metadata"]["uid"], _Shown(int(resource_version(pod) or 0), nominated_node(pod))
        known = self._shown.get(uid)
        if found.node_name if known is None else found.version > known.version:
            self._shown[uid] = found

    def forget(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone."""
        for known in (self._named, self._shown, self._pauses):
            known.pop(pod_uid, None)

    async def name(self, pod: Pod, node_name: str) -> None:
        """Name the node on which room is being made for a pod."""
        self._named[pod.uid] = node_name
        await self._write(pod, node_name)

    async def keep(self, pod: Pod) -> float:
        """Name it again, if it was named and another client has cleared that; not time and again.

        Returns after how many seconds to ask again, infinity if the nomination stands.
        """
        node_name = self._named.get(pod.uid)
        if node_name is None or self._shows(pod.uid, node_name):
            return math.inf
        pause = self._pauses.setdefault(pod.uid, _Pause())
        now_s = self._clock.now_s()
        if now_s < pause.until_s:
            return pause.until_s - now_s
        pause.until_s = now_s + pause.backoff.next_s()
        await self._write(pod, node_name)
        return math.inf

    async def clear(self, pod: Pod, node_name: str, is_ours: bool) -> None:
        """Take a nomination for a node back, if there is one and this operator has made it, or `is_ours` says so."""
        named = self._named.pop(pod.uid, None)
        self._pauses.pop(pod.uid, None)
        known = self._shown.get(pod.uid)
        if known is not None and known.node_name == node_name and (is_ours or named == node_name):
            await self._write(pod, "")

    def _shows(self, pod_uid: str, node_name: str) -> bool:
        known = self._shown.get(pod_uid)
        return (known.node_name if known else "") == node_name

    async def _write(self, pod: Pod, node_name: str) -> None:
        if self._shows(pod.uid, node_name):
            return
        try:
            self.shows(await self._store.nominate_pod(pod, node_name))
        except ApiError as error:
            logger.info("pod %s can't be nominated for node %s: %s", pod, node_name or "none", error)


PODS_AT_ONCE = 16
RESERVE_TIMEOUT_S = 15.0
REFUSED_PAUSE_S = 5.0
"""Before an eviction is asked for again that was refused."""

SUSPECT_DELAY_S = 10.0
"""How long claims may be listed of which this operator knows nothing. Writing all of a pod's takes less."""

IN_VAIN_S = 10.0
"""After this a preemption is given up: no pod leaves any more, or kube-scheduler leaves out the node. The victims that
kube-scheduler has chosen are evicted after the claim is made, and the watches show later that they go."""

READY_WAIT_S = 1.0
"""How long a request for a pod waits for room that no pod uses any more. Until it is reserved takes two writes."""


@define(eq=False, slots=False)
class AwaitedRooms(Component):
    """Requests for pods that wait for the room that is being made for them."""

    _evictor: Evictor

    def __attrs_post_init__(self) -> None:
        self._did_not_come: set[str] = set()  # UIDs of pods whose room was waited for, and did not come in time
        self._awaited: dict[str, asyncio.Event] = {}  # pod UID -> set when its room is there, for who waits for that

    async def wait_for(self, pod_uid: str) -> None:
        """Wait a moment for the room that is made for a pod, if its victims are gone from the API server.

        kube-scheduler can see them go before the operator does. It asks at once, and a refusal would make it clear the
        pod's nomination: then others get the CPU. It does not wait while victims are still there, nor where they were
        deleted by force, so that their shares stay; and once only, as all other pods wait, too.
        """
        claims = self._ledger.promises.claims_of(pod_uid)
        if not claims or pod_uid in self._did_not_come or self._is_kept(claims):
            return
        event = self._awaited.setdefault(pod_uid, asyncio.Event())
        with suppress(ApiError):
            try:
                async with asyncio.timeout(READY_WAIT_S):
                    victims = self._evictor.victims(claims).values()
                    if all(await gather_all([self._is_gone(victim) for victim in victims])):
                        await event.wait()
            except TimeoutError:
                self._did_not_come.add(pod_uid)
        self._awaited.pop(pod_uid, None)

    def _is_kept(self, claims: Sequence[tuple[Card, Claim]]) -> bool:
        """Return whether a victim is gone whose share stays for a while."""
        entries = ((self._ledger.entry(card.uuid), claim) for card, claim in claims)
        return any(entry is not None and _is_releasing(entry, claim) for entry, claim in entries)

    async def _is_gone(self, victim: Pod) -> bool:
        try:
            found = await self._store.pod(victim.namespace, victim.name)
        except NotFound:
            return True
        return found["metadata"]["uid"] != victim.uid or is_finished(found)

    def observe(self, pod_uid: str, entry: CardEntry, claim: Claim) -> None:
        """Observe a card with a claim of a pod: where a victim's share stays, the pod does not wait."""
        if pod_uid in self._awaited and _is_releasing(entry, claim):
            self.let_go_on(pod_uid)

    def let_go_on(self, pod_uid: str) -> None:
        """Record that a pod's room is there, or does not come."""
        if event := self._awaited.get(pod_uid):
            event.set()

    def forget(self, pod_uid: str) -> None:
        """Record that a preemption has ended."""
        self._did_not_come.discard(pod_uid)
        self.let_go_on(pod_uid)


@define(eq=False, slots=False)
class PreemptionExecutor(Component):
    """Brings preemptions to their end, both the operator's and kube-scheduler's."""

    _waiting: WaitingPods
    _lives: PodLifecycles
    _leavers: ChosenVictims
    _gang_rooms: GangRooms
    _deadlines: Deadlines
    _binder: PodBinder

    def __attrs_post_init__(self) -> None:
        self.nominator = Nominator(self._context)
        self._is_binding = self._binder.is_binding
        self._evictor = Evictor(self._context, self._lives, self._leavers)
        self.pending: set[str] = set()  # UIDs of the pods without a node
        self._active: set[str] = set()  # UIDs of the pods to which something is promised, as of the last look
        self._given_up: dict[str, str] = {}  # pod UID -> why its preemption has to end
        self._in_vain: dict[str, float] = {}  # pod UID -> since when no pod leaves for it any more, by the loop's clock
        self._not_taken: dict[str, float] = {}  # pod UID -> since when kube-scheduler leaves out the node of its room
        self._timers: dict[str, asyncio.TimerHandle] = {}  # pod UID -> next look by the clock
        self._awaited = AwaitedRooms(self._context, self._evictor)
        self.worker = KeyedWorker(self._look, PODS_AT_ONCE, self._is_active)

    # Called by other parts.

    def waits_no_more(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone: what it is promised elsewhere is free again."""
        self.pending.discard(pod_uid)
        self.nominator.forget(pod_uid)
        if pod_uid in self._active or self._ledger.promises.is_made(pod_uid):
            self.look(pod_uid)

    def asked(self, pod_uid: str, node_names: Container[str]) -> None:
        """Record that Filter refused a pod: the node of its room may be missing among the offered ones.

        kube-scheduler leaves it out where others have taken the CPU, for example. A requeue would not change that.
        """
        reserved = self._reserved(pod_uid)
        if not reserved or reserved[0][0].node_name in node_names:
            self._not_taken.pop(pod_uid, None)
        elif not self._ledger.promises.claims_of(pod_uid):
            self._not_taken.setdefault(pod_uid, self._clock.now_s())
            self.look(pod_uid)

    def found_no_node(self, pod_uid: str) -> None:
        """Record that kube-scheduler has found no node for a pod, perhaps before its room was there: call it once."""
        was_known = pod_uid in self._not_taken
        self.asked(pod_uid, ())
        if pod_uid in self._not_taken and not was_known:
            self._call(pod_uid)

    def look(self, pod_uid: str) -> None:
        """Have a pod's preemption looked at, soon."""
        self._active.add(pod_uid)
        self.worker.mark(pod_uid)

    def look_at_all(self) -> None:
        """Have all preemptions looked at that are known: something has changed in the ledger."""
        for uid in self._active:
            self.worker.mark(uid)

    def became_active(self) -> None:
        """Go on with what the ledger lists: this operator has become the active one, and knows who is pending."""
        for uid in self._ledger.promises.pod_uids():
            self.look(uid)
        for entry in self._ledger.entries():
            for uid, holder in entry.holders.items():
                if holder.state is HolderState.RESERVED:
                    self.look(uid)

    def observe_card(self, entry: CardEntry) -> None:
        """Look at those whose victims have left a promised card: others may have come to it, and no room have changed.

        In a while, at claims of which nothing is known: another operator's, or what a lost write has left.
        """
        for uid, claim in entry.claims.items():
            self._awaited.observe(uid, entry, claim)
            if uid in self._active:
                if entry.holders.keys().isdisjoint(claim.victims):
                    self.worker.mark(uid)
            elif uid not in self._timers:
                self._look_again(uid, SUSPECT_DELAY_S)

    def give_up(self, pod_uid: str, why: str) -> None:
        """End a pod's preemption; evictions for it are not undone."""
        self._given_up.setdefault(pod_uid, why)
        self.look(pod_uid)

    async def room_comes(self, pod_uid: str) -> None:
        """Wait a moment for the room that is made for a pod."""
        if pod_uid in self._active:
            await self._awaited.wait_for(pod_uid)

    # Carrying out.

    async def _look(self, pod_uid: str) -> None:
        if self._gang_rooms.is_being_claimed(pod_uid):  # it is looked at after that
            return
        claims, reserved = self._ledger.promises.claims_of(pod_uid), self._reserved(pod_uid)
        if not claims and not reserved:
            self._end(pod_uid)
            return
        if self._is_binding(pod_uid):  # it is about to use them
            return
        cards = [card for card, _ in (*claims, *reserved)]
        if len({card.node_name for card in cards}) > 1:  # two operators were active for a moment; each has begun it
            node_name = fullest_node(cards, [card for card, _ in reserved])
            await self._withdraw(pod_uid, *elsewhere(node_name, claims, reserved))
            self.worker.mark(pod_uid)
            return
        holders = [claim.holder for _, claim in claims] + [holder for _, holder in reserved]
        why = self._why_to_end(pod_uid, claims, holders) or self._why_not_these(cards)
        if why:
            await self._give_back(pod_uid, claims, reserved, why)
            return
        wait_s = max(0.0, self._deadlines.least_left_s(holders)) + 1.0
        if pod_uid not in self._not_taken:
            wait_s = min(wait_s, await self.nominator.keep(holders[0].pod))
        self._look_again(pod_uid, wait_s)
        ready = [claim for card, claim in claims if self._evictor.is_free(card, claim)]
        await gather_all([self._reserve(claim) for claim in ready])
        if self._is_binding(pod_uid) or pod_uid not in self.pending:  # it has found room meanwhile
            return
        claims = self._ledger.promises.claims_of(pod_uid)
        taken = [(card, claim) for card, claim in claims if not self._evictor.is_free(card, claim)]
        if self._waits_in_vain(pod_uid, taken):
            self.give_up(pod_uid, "other pods have taken its cards, and do not leave")
            return
        await self._evict(pod_uid, taken)
        if not self._ledger.promises.claims_of(pod_uid) and not self._is_left_out(pod_uid, cards[0].node_name):
            self._call(pod_uid)

    async def _evict(self, pod_uid: str, taken: Sequence[tuple[Card, Claim]]) -> None:
        if not await self._evictor.evict(taken):
            self._look_again(pod_uid, REFUSED_PAUSE_S)
        elif any(self._evictor.is_free(card, claim) for card, claim in taken):  # only others had to leave
            self.worker.mark(pod_uid)

    def _is_left_out(self, pod_uid: str, node_name: str) -> bool:
        """Return whether kube-scheduler left out the node with a pod's reservation; give that up after a while."""
        since_s = self._not_taken.get(pod_uid)
        if since_s is None:
            return False
        if self._is_in_vain(pod_uid, since_s):
            self.give_up(pod_uid, f"kube-scheduler does not choose node {node_name}, where its cards are reserved")
        return True

    def _reserved(self, pod_uid: str) -> list[tuple[Card, Holder]]:
        holders = self._ledger.holders.of(pod_uid)
        return [(card, holder) for card, holder in holders if holder.state is HolderState.RESERVED]

    def _why_to_end(self, pod_uid: str, claims: Sequence[tuple[Card, Claim]], holders: Sequence[Holder]) -> str:
        """Return why a preemption has to end, empty as long as it goes on."""
        if pod_uid in self._given_up:
            return self._given_up[pod_uid]
        if pod_uid not in self.pending:
            return "the pod is bound or gone"
        if any(len(holders) < claim.cards for _, claim in claims) or (not claims and self._lacks(pod_uid, holders)):
            return "a card that was promised to it is gone"
        if self._deadlines.least_left_s(holders) <= 0:
            return "the victims have not left in time, or the pod was not bound in time"
        return self._gang_rooms.why_to_end(pod_uid)

    def _why_not_these(self, cards: Sequence[Card]) -> str:
        """Return why a pod can't come to cards even when all others have left them; empty if nothing stands in the way.

        A node whose agent is away may be back in a moment.
        """
        lost = [card.uuid for card in cards if not self._ledger.node_room(card.node_name).can_give([card.uuid])]
        return f"card {lost[0]} no longer takes pods" if lost else ""

    def _lacks(self, pod_uid: str, reserved: Sequence[Holder]) -> bool:
        """Return whether what is reserved for a pod is known not to be all that it asks for."""
        waiting = self._waiting.lookup(pod_uid)
        return waiting is not None and not fitting_variant([holder.share for holder in reserved], waiting.request)

    async def _give_back(
        self, pod_uid: str, claims: Sequence[tuple[Card, Claim]], reserved: Sequence[tuple[Card, Holder]], why: str
    ) -> None:
        holders = [claim.holder for _, claim in claims] + [holder for _, holder in reserved]
        await self._withdraw(pod_uid, claims, reserved)
        seat = self._ledger.seats.of(pod_uid)
        if seat is not None and seat.strength is Strength.WAITING:  # it counts by itself without the reserved shares
            self._ledger.seats.give_up(pod_uid)
            self._waiting.have_lost_room((pod_uid,))
        if pod_uid in self.pending:
            evicted = any(claim.victims for _, claim in claims)
            await self.nominator.clear(holders[0].pod, [*claims, *reserved][0][0].node_name, evicted)
            logger.info("pod %s: its preemption was given up: %s", holders[0].pod, why)
            self._event_recorder.post_pod_event(holders[0].pod, True, EventReason.PREEMPTION_GIVEN_UP, why)
            shares, card = [holder.share for holder in holders], [*claims, *reserved][0][0]
            self._trail.note(RecordKind.GIVEN_UP, holders[0].pod, card.node_name, shares, why)
        self._end(pod_uid)

    async def _withdraw(
        self, pod_uid: str, claims: Sequence[tuple[Card, Claim]], reserved: Sequence[tuple[Card, Holder]]
    ) -> None:
        await gather_all([self._journal.withdraw_claim(card.uuid, pod_uid) for card, _ in claims])
        await gather_all([self._journal.remove(card.uuid, pod_uid, holder) for card, holder in reserved])

    def _end(self, pod_uid: str) -> None:
        if pod_uid in self._active:
            outcome = PreemptionOutcome.DONE if self._ledger.holders.of(pod_uid) else PreemptionOutcome.GIVEN_UP
            self._counts.preemptions.labels(outcome).inc()
        self._active.discard(pod_uid)
        self._given_up.pop(pod_uid, None)
        self._evictor.forget(pod_uid)
        self._in_vain.pop(pod_uid, None)
        self._not_taken.pop(pod_uid, None)
        self._awaited.forget(pod_uid)
        if timer := self._timers.pop(pod_uid, None):
            timer.cancel()

    def _look_again(self, pod_uid: str, wait_s: float) -> None:
        if timer := self._timers.get(pod_uid):
            timer.cancel()
        self._timers[pod_uid] = self._tasks.after(wait_s, self.look, pod_uid)

    def _waits_in_vain(self, pod_uid: str, taken: Sequence[tuple[Card, Claim]]) -> bool:
        """Return whether the preemption is stuck: no victim remains, yet the card is not free."""
        if all(self._evictor.could_come(card, claim) for card, claim in taken):
            self._in_vain.pop(pod_uid, None)
            return False
        return self._is_in_vain(pod_uid, self._in_vain.setdefault(pod_uid, self._clock.now_s()))

    def _is_in_vain(self, pod_uid: str, since_s: float) -> bool:
        """Return whether what has stood in a pod's way since then has done so for long; if not yet, look again then."""
        wait_s = since_s + IN_VAIN_S - self._clock.now_s()
        if wait_s > 0:
            self._look_again(pod_uid, wait_s)
        return wait_s <= 0

    async def _reserve(self, claim: Claim) -> None:
        """Make the claim a holder, which the API server counts."""
        try:
            await self._journal.add(claim.holder, RESERVE_TIMEOUT_S)
        except ShareRefused as error:  # another client was quicker, such as another operator; the next change shows it
            logger.info("pod %s: %s", claim.holder.pod, error)

    def _call(self, pod_uid: str) -> None:
        """Keep the room for the pod, and have kube-scheduler try it, if it does not by itself; for a gang, for all.

        Not while the node is closed: it would be tried in vain, time and again.
        """
        if not all(self._evictor.may_come(card.node_name) for card, _ in self._reserved(pod_uid)):
            return
        if (gang := self._gang_rooms.gang_of(pod_uid)) is not None:
            if self._not_taken.keys().isdisjoint(gang.pending) and self._gang_rooms.keep(gang):
                for uid in gang.pending:
                    self._awaited.let_go_on(uid)
            return
        reserved = self._reserved(pod_uid)
        if not reserved or self._ledger.seats.of(pod_uid) or self._lacks(pod_uid, [holder for _, holder in reserved]):
            return  # what has gone meanwhile has this pod looked at again
        self._waiting.keep_room(pod_uid, reserved[0][0].node_name, [holder.share for _, holder in reserved])
        self._awaited.let_go_on(pod_uid)


def _is_releasing(entry: CardEntry, claim: Claim) -> bool:
    """Return whether a victim's share stays on a card though the pod is gone."""
    victims = (entry.holders[uid] for uid in claim.victims if uid in entry.holders)
    return any(victim.state is HolderState.RELEASING for victim in victims)
