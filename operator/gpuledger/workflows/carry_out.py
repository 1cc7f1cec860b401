"""Carries preemptions out, from what the ledger shows: so that any operator can go on with what another has begun.

A claim says which share a pod is promised on a card, and whom gpuledger evicts for it. Each look at a pod does what can
be done at that moment: evict who is still there, reserve what is free, call the pod when all its cards are reserved. A
pod that is bound or gone, and one whose time is over, loses what it is promised.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from gpuledger.formats.pod import is_finished
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.errors import ApiError, Conflict, DoesNotFit, NotFound
from gpuledger.model.share import Claim, Holder, HolderState, Pod, covers
from gpuledger.reports.record import Happening
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.journal import Journal
from gpuledger.workflows.keyed_worker import KeyedWorker
from gpuledger.workflows.nominate import Nominator
from gpuledger.workflows.pod_lives import PodLives, unix_s
from gpuledger.workflows.together import all_of
from gpuledger.workflows.trail import Trail
from gpuledger.workflows.wake_up import WaitingPods

logger = logging.getLogger(__name__)

Json = dict[str, Any]

PODS_AT_ONCE = 16
RESERVE_TIMEOUT_S = 15.0
REFUSED_PAUSE_S = 5.0
"""Before an eviction is asked for again that was refused."""

SUSPECT_DELAY_S = 10.0
"""How long claims may be listed of which this operator knows nothing. Writing all of a pod's takes less."""

READY_WAIT_S = 1.0
"""How long a question for a pod waits for room that nobody is in any more. Until it is reserved takes two writes."""

FORBIDDEN = 429


class Outcome(StrEnum):
    """What has become of a preemption."""

    DONE = "done"
    GIVEN_UP = "given-up"


class PodStore(Protocol):
    """The pods at the API server."""

    async def pod(self, namespace: str, name: str) -> Json:
        """Return a pod as it is now. Raises NotFound."""

    async def evict_pod(self, pod: Pod) -> None:
        """Have a pod leave, if its budgets allow that. Raises NotFound, Conflict; Unreachable with 429 if not."""

    async def delete_pod(self, pod: Pod) -> None:
        """Have a pod leave, whatever its budgets say. Raises NotFound, Conflict."""

    async def nominate_pod(self, pod: Pod, node_name: str) -> Json:
        """Nominate a pod for a node, or for none; return the pod as it is then. Raises NotFound, Conflict, Invalid."""


class Teller(Protocol):
    """Shows sentences where people look."""

    def tell_pod(self, pod: Pod, warning: bool, reason: str, sentence: str) -> None:
        """Show what has become of a pod's cards."""


class PreemptionCarrier:
    """Brings preemptions to their end, whoever has begun them."""

    def __init__(
        self,
        ledger: Ledger,
        journal: Journal,
        store: PodStore,
        waiting: WaitingPods,
        lives: PodLives,
        teller: Teller,
        counts: Counts,
        despite_budgets: bool,
        is_binding: Callable[[str], bool],
        is_active: Callable[[], bool] = lambda: True,
        trail: Trail | None = None,
    ) -> None:
        self.trail = trail or Trail()
        self.nominator = Nominator(store)
        self._ledger = ledger
        self._journal = journal
        self._store = store
        self._waiting = waiting
        self._lives = lives
        self._teller = teller
        self._counts = counts
        self._despite_budgets = despite_budgets
        self._is_binding = is_binding
        self._pending: set[str] = set()  # UIDs of the pods without a node
        self._active: set[str] = set()  # UIDs of the pods to which something is promised, as of the last look
        self._given_up: dict[str, str] = {}  # pod UID -> why its preemption has to end
        self._evicted: dict[str, set[str]] = {}  # pod UID -> UIDs of the victims that were told to leave for it
        self._timers: dict[str, asyncio.TimerHandle] = {}  # pod UID -> next look by the clock
        self._awaited: dict[str, asyncio.Event] = {}  # pod UID -> set when its room is there, for who waits for that
        self.worker = KeyedWorker(self._look, PODS_AT_ONCE, is_active)

    # What others tell.

    def waits(self, pod_uid: str) -> None:
        """Take in that a pod has no node."""
        self._pending.add(pod_uid)

    def waits_no_more(self, pod_uid: str) -> None:
        """Take in that a pod is bound or gone: what it is promised elsewhere is free again."""
        self._pending.discard(pod_uid)
        self.nominator.forget(pod_uid)
        if pod_uid in self._active or self._ledger.promises.is_made(pod_uid):
            self.look(pod_uid)

    def look(self, pod_uid: str) -> None:
        """Have a pod's preemption looked at, soon."""
        self._active.add(pod_uid)
        self.worker.mark(pod_uid)

    def look_at_all(self) -> None:
        """Have all preemptions looked at that are known: something has changed in the ledger."""
        for uid in self._active:
            self.worker.mark(uid)

    def take_over(self) -> None:
        """Go on with what the ledger lists: this operator has become the active one, and knows who is pending."""
        for uid in self._ledger.promises.pod_uids():
            self.look(uid)
        for entry in self._ledger.entries():
            for uid, holder in entry.holders.items():
                if holder.state is HolderState.RESERVED:
                    self.look(uid)

    def notice(self, card: CardEntry) -> None:
        """Look, in a while, at claims of which nothing is known: another operator's, or what a lost write has left."""
        for uid in card.claims:
            if uid not in self._active and uid not in self._timers:
                self._look_again(uid, SUSPECT_DELAY_S)

    def give_up(self, pod_uid: str, why: str) -> None:
        """End a pod's preemption; whoever was evicted for it stays so."""
        self._given_up.setdefault(pod_uid, why)
        self.look(pod_uid)

    async def room_comes(self, pod_uid: str) -> None:
        """Wait a moment for the room that is made for a pod, if those who had to leave are gone from the API server.

        kube-scheduler can see them go before we do. It asks at once, and a refusal would make it clear the pod's
        nomination: then others get the CPU. While they are still there, nothing is waited for.
        """
        claims = self._ledger.promises.claims_of(pod_uid)
        if not claims or pod_uid not in self._active:
            return
        event = self._awaited.setdefault(pod_uid, asyncio.Event())
        with suppress(TimeoutError, ApiError):
            async with asyncio.timeout(READY_WAIT_S):
                if all(await all_of([self._is_gone(victim) for victim in self._victims(claims).values()])):
                    await event.wait()
        self._awaited.pop(pod_uid, None)

    async def _is_gone(self, victim: Pod) -> bool:
        try:
            found = await self._store.pod(victim.namespace, victim.name)
        except NotFound:
            return True
        return found["metadata"]["uid"] != victim.uid or is_finished(found)

    def remembered(self) -> set[str]:
        """Return the UIDs of the pods without a node that are known."""
        return set(self._pending)

    async def stop(self) -> None:
        """Leave everything as it is."""
        for timer in self._timers.values():
            timer.cancel()
        await self.worker.stop()

    # Carrying out.

    async def _look(self, pod_uid: str) -> None:
        if self._ledger.promises.is_under_way(pod_uid):  # its claims are being written; it is looked at after that
            return
        claims, reserved = self._ledger.promises.claims_of(pod_uid), self._reserved(pod_uid)
        if not claims and not reserved:
            self._end(pod_uid)
            return
        if self._is_binding(pod_uid):  # it is about to use them
            return
        cards = [card for card, _ in (*claims, *reserved)]
        if len({card.node_name for card in cards}) > 1:  # two operators were active for a moment; each has begun it
            node_name = _fullest_node(cards, [card for card, _ in reserved])
            await self._withdraw(pod_uid, *_elsewhere(node_name, claims, reserved))
            self.worker.mark(pod_uid)
            return
        holders = [claim.holder for _, claim in claims] + [holder for _, holder in reserved]
        why = self._why_to_end(pod_uid, claims, holders) or self._why_not_these(cards)
        if why:
            await self._give_back(pod_uid, claims, reserved, why)
            return
        self._look_again(pod_uid, max(0.0, _seconds_left(holders)) + 1.0)
        await self.nominator.keep(holders[0].pod)
        ready = [claim for card, claim in claims if self._is_free(card, claim)]
        await all_of([self._reserve(claim) for claim in ready])
        if self._is_binding(pod_uid) or pod_uid not in self._pending:  # it has found room meanwhile
            return
        claims = self._ledger.promises.claims_of(pod_uid)
        await self._evict(pod_uid, [(card, claim) for card, claim in claims if not self._is_free(card, claim)])
        if not self._ledger.promises.claims_of(pod_uid):
            self._call(pod_uid)

    def _reserved(self, pod_uid: str) -> list[tuple[Card, Holder]]:
        holders = self._ledger.holders_of(pod_uid)
        return [(card, holder) for card, holder in holders if holder.state is HolderState.RESERVED]

    def _why_to_end(self, pod_uid: str, claims: Sequence[tuple[Card, Claim]], holders: Sequence[Holder]) -> str:
        """Return why a preemption has to end, empty as long as it goes on."""
        if pod_uid in self._given_up:
            return self._given_up[pod_uid]
        if pod_uid not in self._pending:
            return "the pod is bound or gone"
        if any(len(holders) < claim.cards for _, claim in claims) or (not claims and self._lacks(pod_uid, holders)):
            return "a card that it was to have is gone"
        if _seconds_left(holders) <= 0:
            return "those that were to leave are still there, or the pod has not come to its cards in time"
        return ""

    def _why_not_these(self, cards: Sequence[Card]) -> str:
        """Return why a pod can't come to cards even when all others have left them; empty if nothing stands in the way.

        A node whose agent is away may be back in a moment.
        """
        lost = [card.uuid for card in cards if not self._ledger.node_room(card.node_name).can_give([card.uuid])]
        return f"no pods can come to card {lost[0]} any more" if lost else ""

    def _lacks(self, pod_uid: str, reserved: Sequence[Holder]) -> bool:
        """Tell whether what is reserved for a pod is known not to be all that it asks for."""
        waiting = self._waiting.lookup(pod_uid)
        return waiting is not None and not covers([holder.share for holder in reserved], waiting.request)

    async def _give_back(
        self,
        pod_uid: str,
        claims: Sequence[tuple[Card, Claim]],
        reserved: Sequence[tuple[Card, Holder]],
        why: str,
    ) -> None:
        holders = [claim.holder for _, claim in claims] + [holder for _, holder in reserved]
        await self._withdraw(pod_uid, claims, reserved)
        if pod_uid in self._pending:
            evicted = any(claim.victims for _, claim in claims)
            await self.nominator.clear(holders[0].pod, [*claims, *reserved][0][0].node_name, evicted)
            logger.info("pod %s: its preemption is given up: %s", holders[0].pod, why)
            self._teller.tell_pod(holders[0].pod, True, "PreemptionGivenUp", why)
            shares, card = [holder.share for holder in holders], [*claims, *reserved][0][0]
            self.trail.note(Happening.GIVEN_UP, holders[0].pod, card.node_name, shares, why)
        self._end(pod_uid)

    async def _withdraw(
        self, pod_uid: str, claims: Sequence[tuple[Card, Claim]], reserved: Sequence[tuple[Card, Holder]]
    ) -> None:
        await all_of([self._journal.withdraw_claim(card.uuid, pod_uid) for card, _ in claims])
        await all_of([self._journal.remove(card.uuid, pod_uid, holder) for card, holder in reserved])

    def _end(self, pod_uid: str) -> None:
        if pod_uid in self._active:
            outcome = Outcome.DONE if self._ledger.holders_of(pod_uid) else Outcome.GIVEN_UP
            self._counts.preemptions[outcome] += 1
        self._active.discard(pod_uid)
        self._given_up.pop(pod_uid, None)
        self._evicted.pop(pod_uid, None)
        self._let_go_on(pod_uid)
        timer = self._timers.pop(pod_uid, None)
        if timer:
            timer.cancel()
        self._ledger.hosts.give_up(pod_uid)

    def _look_again(self, pod_uid: str, wait_s: float) -> None:
        timer = self._timers.get(pod_uid)
        if timer:
            timer.cancel()
        self._timers[pod_uid] = asyncio.get_running_loop().call_later(wait_s, self.look, pod_uid)

    def _is_free(self, card: Card, claim: Claim) -> bool:
        entry = self._ledger.entry(card.uuid)
        return entry is not None and entry.open and entry.takes_now(claim)

    async def _reserve(self, claim: Claim) -> None:
        """Make the claim a holder, which the API server counts."""
        try:
            await self._journal.add(claim.holder, RESERVE_TIMEOUT_S)
        except DoesNotFit as error:  # somebody was quicker, as another operator; the next change tells
            logger.info("pod %s: %s", claim.holder.pod, error)

    def _call(self, pod_uid: str) -> None:
        """Keep the room for the pod, and have kube-scheduler try it, if it does not by itself."""
        reserved = self._reserved(pod_uid)
        if not reserved or self._ledger.hold_of(pod_uid) or self._lacks(pod_uid, [holder for _, holder in reserved]):
            return  # what has gone meanwhile has this pod looked at again
        self._waiting.keep_room(pod_uid, reserved[0][0].node_name, [holder.share for _, holder in reserved])
        self._let_go_on(pod_uid)

    def _let_go_on(self, pod_uid: str) -> None:
        event = self._awaited.get(pod_uid)
        if event is not None:
            event.set()

    # Evicting.

    async def _evict(self, pod_uid: str, claims: Sequence[tuple[Card, Claim]]) -> None:
        """Tell those victims to leave that have not been told yet. Raises what the API server says.

        Not while the pod could not come to the node: nobody shall leave in vain.
        """
        if any(self._ledger.offer(card.node_name) is None or self._ledger.hangs(card.node_name) for card, _ in claims):
            return
        steps = []
        for uid, victim in self._victims(claims).items():
            if uid not in self._evicted.get(pod_uid, ()) and not self._lives.is_leaving(uid):
                uuids = [card.uuid for card, claim in claims if uid in claim.victims]
                steps.append(self._evict_one(claims[0][1].holder.pod, victim, uuids))
        if False in await all_of(steps):
            self._look_again(pod_uid, REFUSED_PAUSE_S)

    def _victims(self, claims: Sequence[tuple[Card, Claim]]) -> dict[str, Pod]:
        """Return the victims that are still on their cards."""
        found: dict[str, Pod] = {}
        for card, claim in claims:
            entry = self._ledger.entry(card.uuid)
            holders = entry.holders if entry is not None else {}
            found |= {uid: holders[uid].pod for uid in claim.victims if uid in holders}
        return found

    async def _evict_one(self, pod: Pod, victim: Pod, uuids: Sequence[str]) -> bool:
        """Return whether the victim leaves. If not, a budget forbids it now, or it is gone; the ledger will tell."""
        try:
            await self._store.evict_pod(victim)
        except (NotFound, Conflict):  # another pod may have its name by now
            return False
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            if not self._despite_budgets:
                logger.info("pod %s can't be evicted now: %s", victim, error)
                return False
            try:
                await self._store.delete_pod(victim)
            except (NotFound, Conflict):
                return False
        self._counts.evictions += 1
        self._evicted.setdefault(pod.uid, set()).add(victim.uid)
        lost = [each for each in self._ledger.holders_of(victim.uid) if each[0].uuid in uuids]
        node_name = lost[0][0].node_name if lost else ""
        why = f"for pod {pod} of priority {pod.priority}"
        self.trail.note(Happening.EVICTED, victim, node_name, [holder.share for _, holder in lost], why)
        cards = ", ".join(uuids)
        sentence = f"evicted: pod {pod} of priority {pod.priority} needs its place on cards {cards}"
        self._teller.tell_pod(victim, True, "Preempted", sentence)
        return True


def _fullest_node(cards: Sequence[Card], reserved: Sequence[Card]) -> str:
    """Return the node on which most is promised, then most is reserved; who sees the same cards finds the same one."""
    promised, kept = Counter(card.node_name for card in cards), Counter(card.node_name for card in reserved)
    return max(promised, key=lambda name: (promised[name], kept[name], name))


def _elsewhere(
    node_name: str, claims: Sequence[tuple[Card, Claim]], reserved: Sequence[tuple[Card, Holder]]
) -> tuple[list[tuple[Card, Claim]], list[tuple[Card, Holder]]]:
    """Return those claims and reserved shares that are on other nodes."""
    return [each for each in claims if each[0].node_name != node_name], [
        each for each in reserved if each[0].node_name != node_name
    ]


def _seconds_left(holders: Sequence[Holder]) -> float:
    now_s = datetime.now(UTC).timestamp()
    return min(unix_s(holder.deadline) for holder in holders if holder.deadline) - now_s
