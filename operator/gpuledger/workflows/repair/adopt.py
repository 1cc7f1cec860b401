"""Bound pods that the ledger does not know: bound by another scheduler, or before their cards were lost.

What such a pod has is known only from its annotation, which users can write. So its shares are entered only where a
person asks for it, in a migration; what does not fit is listed on the card as a conflict, and never counted. Until then
the cards that it may use take no new pod (ledger/unaccounted.py): from the moment on in which the pod is seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from attrs import define

from gpuledger.formats.kubernetes.pod import has_ended, is_finished, scheduler_of
from gpuledger.formats.resource_claims.claims import has_claims
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.adoption import Adopt, ambiguous_cards, lacks_cards, missing_shares
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import BadInput, NotFound, ShareRefused
from gpuledger.model.json_object import Json
from gpuledger.model.node import PodFacts, UnaccountedPod
from gpuledger.model.share import Holder, Misfit, Pod, Share
from gpuledger.reports.history import RecordKind
from gpuledger.workflows.journal.journal import Journal
from gpuledger.workflows.pending.trail import Trail
from gpuledger.workflows.release.deadlines import ReleaseTimes
from gpuledger.workflows.tasks import KeyedWorker

logger = logging.getLogger(__name__)


ENTER_TIMEOUT_S = 15.0
"""How long the API server may take to enter a share."""

SETTLE_S = 2.0
"""How long a pod may be seen bound before its holders are seen: two watches show them, in any order."""

PODS_AT_ONCE = 16

WHY_LENGTH = 256
"""The CRD's limit."""


async def enter_shares(journal: Journal, adoption: Adopt) -> bool:
    """Enter a bound pod's shares, list as conflicts those that do not fit; return whether all are entered."""
    entered = [_enter(journal, adoption.pod, share) for share in adoption.shares]
    return all(await asyncio.gather(*entered))


async def _enter(journal: Journal, pod: Pod, share: Share) -> bool:
    try:
        await journal.add(Holder(pod, share), ENTER_TIMEOUT_S)
    except ShareRefused as error:
        why = str(error).replace(f"card {share.uuid}", "the card")
        misfit = Misfit(replace(pod, priority=0), share.amounts, why[:WHY_LENGTH])
        with suppress(ShareRefused):  # a card lists only so many
            await journal.show_conflict(share.uuid, misfit)
        return False
    await journal.clear_conflict(share.uuid, pod.uid)
    return True


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A bound pod that lacks shares, and why they were not entered."""

    pod: Pod
    node_name: str
    why: str


@define(eq=False, slots=False)
class Adopter:
    """Counts the bound pods that lack shares in the ledger, logs each once, and enters them where that is set.

    A pod whose shares could not be entered is looked at again in each full list, and as soon as a card of its node
    opens: the cards of a ledger that is rebuilt come after the pods.
    """

    _ledger: Ledger
    _journal: Journal
    _store: KubeStore
    _read_facts: Callable[[Json], PodFacts]
    _read_stranger: Callable[[Json], UnaccountedPod | None]
    _adopt_pods: bool
    _scheduler_names: Collection[str]
    _release_times: ReleaseTimes
    _is_active: Callable[[], bool]
    _trail: Trail

    def __attrs_post_init__(self) -> None:
        self._leaving: dict[str, asyncio.TimerHandle] = {}  # UID of a stranger that is gone -> when it has left
        self._cards = _OpenCards(self._ledger)
        self._listed: set[str] = set()  # UIDs of the pods in the list that is being read
        self._suspects: dict[str, Pod] = {}  # pod UID -> pod that is to be looked at
        self._unknown: dict[str, _Unknown] = {}  # pod UID -> pod that lacks shares
        self.worker = KeyedWorker(self._look, PODS_AT_ONCE, self._is_active)

    def __len__(self) -> int:
        """Return how many bound pods are known to lack shares."""
        return len(self._unknown)

    def observe(self, pod: Json, is_latest: bool = True) -> None:
        """Observe a bound pod of a full list, of any scheduler. A watch may have shown something later of it."""
        self._listed.add(pod["metadata"]["uid"])
        if is_latest:
            self._take(pod)
            if self._is_ours(pod):
                facts = self._read_facts(pod)
                if self._lacks(facts) or (facts.bad_request and has_claims(pod)):  # its claims may be known soon
                    self._suspect(facts.pod)
                else:
                    self._unknown.pop(facts.pod.uid, None)

    def show(self, pod: Json, gone: bool) -> None:
        """Observe a bound pod that a watch shows, of any scheduler."""
        uid = pod["metadata"]["uid"]
        if gone or is_finished(pod):
            self._ended(uid, may_run=not has_ended(pod))
        else:
            self._take(pod)

    def listed(self) -> None:
        """Record that the list has ended: pods that were not in it need nothing any more."""
        for uid in self._unknown.keys() - self._listed:
            del self._unknown[uid]
        for uid in set(self._ledger.strangers.uids()) - self._listed:
            self._ended(uid, may_run=True)
        for entry in self._ledger.entries_with_misfits():
            for misfit in entry.misfits:
                if misfit.pod.uid not in self._listed or misfit.pod.uid in entry.holders:
                    self._suspect(misfit.pod)
        self._listed.clear()
        self._ledger.strangers.all_seen()

    def notice(self, entry: CardEntry) -> None:
        """Record that a card was written: a share that did not fit may fit now. Each is tried again if it does."""
        for misfit in entry.misfits:
            if misfit.pod.uid not in self._suspects and misfit.amounts.fits_in(entry.room().free):
                self._suspect(misfit.pod)

    def _take(self, pod: Json) -> None:
        """Close, in memory, what a pod may use that lacks shares; find out soon whether they can be entered."""
        uid, found = pod["metadata"]["uid"], self._read_stranger(pod)
        if found is None:
            self._ended(uid, may_run=False)
            return
        known = self._ledger.strangers.find(uid)
        if not self._ledger.strangers.note(found) or found == known:
            return
        if self._ledger.only_counts(found.node_name):
            return  # its plugin has chosen, and no card of it is in the ledger: should one come, it is closed
        if self._is_ours(pod):
            self._suspect(found.pod)
        elif self._ledger.entries_of_node(found.node_name):
            logger.warning(
                "pod %s may have cards of node %s without the ledger: name its scheduler, %s, in extra_scheduler_names",
                found.pod,
                found.node_name,
                scheduler_of(pod),
            )

    def _ended(self, uid: str, may_run: bool) -> None:
        """Record that a pod uses no card any more; soon, if no agent has seen its processes end."""
        found = self._ledger.strangers.find(uid)
        if found is None or (uid in self._leaving and may_run):
            return
        timer = self._leaving.pop(uid, None)
        if timer:
            timer.cancel()
        wait_s = self._release_times.wait_s(found.pod.grace_s) if may_run else 0.0
        if wait_s:
            self._leaving[uid] = asyncio.get_running_loop().call_later(wait_s, self._ended, uid, False)
            return
        pod = self._ledger.strangers.forget(uid)
        if pod is not None and self._unknown.pop(uid, None) is not None:
            self._suspect(pod)  # a card may list it as a conflict

    def _is_ours(self, pod: Json) -> bool:
        return scheduler_of(pod) in self._scheduler_names

    def reconsider(self, node_name: str) -> None:
        """Record that a card of a node takes pods now: shares that could not be entered may fit."""
        for unknown in self._unknown.values():
            if unknown.node_name == node_name:
                self._suspect(unknown.pod)

    def _suspect(self, pod: Pod) -> None:
        self._suspects[pod.uid] = pod
        asyncio.get_running_loop().call_later(SETTLE_S, self.worker.mark, pod.uid)

    def _lacks(self, facts: PodFacts) -> bool:
        if not facts.request or not facts.needs_cards or self._ledger.only_counts(facts.node_name):
            return False
        return lacks_cards(self._held(facts), facts.request)

    def _held(self, facts: PodFacts) -> list[Share]:
        held = self._ledger.holders_of(facts.pod.uid)
        return [holder.share for card, holder in held if card.node_name == facts.node_name]

    async def _look(self, pod_uid: str) -> None:
        pod = self._suspects.get(pod_uid)
        if pod is None:
            return
        facts = await self._read(pod)
        if facts is not None and self._lacks(facts):
            await self._take_in(facts)
        else:
            self._unknown.pop(pod_uid, None)
            for entry in self._ledger.entries_with_misfits():
                if any(misfit.pod.uid == pod_uid for misfit in entry.misfits):
                    await self._journal.clear_conflict(entry.card.uuid, pod_uid)
        self._suspects.pop(pod_uid, None)

    async def _read(self, pod: Pod) -> PodFacts | None:
        try:
            facts = self._read_facts(await self._store.pod(pod.namespace, pod.name))
        except NotFound:
            return None
        return facts if facts.pod.uid == pod.uid else None

    async def _take_in(self, facts: PodFacts) -> None:
        problem = await self._problem(facts)
        if not problem:
            logger.info(
                "pod %s was bound to node %s without its shares; the operator enters them", facts.pod, facts.node_name
            )
            self._unknown.pop(facts.pod.uid, None)
            return
        unknown = _Unknown(facts.pod, facts.node_name, problem)
        if self._unknown.get(facts.pod.uid) != unknown:
            logger.warning(
                "pod %s is bound to node %s, but its shares are not in the ledger: %s; see `gpuledger audit`",
                facts.pod,
                facts.node_name,
                problem,
            )
            self._unknown[facts.pod.uid] = unknown

    async def _problem(self, facts: PodFacts) -> str:
        """Enter what may be entered; return why something was not.

        What a card lists as a conflict was to be entered on request, and is as soon as it fits.
        """
        on_list = self._cards_that_list(facts)
        if not self._adopt_pods and not on_list:
            return "adopt_pods is off"
        if not facts.taken_up:
            return "its kubelet has not accepted it, and no scheduler has bound it"
        try:
            shares = missing_shares(facts, self._held(facts), self._cards)
        except BadInput as error:
            if self._adopt_pods:
                await self._show_ambiguous(facts, str(error))
            return str(error)
        its_own = self._ledger.strangers.cards_of(facts.pod.uid, facts.node_name)
        if its_own is not None and not {share.uuid for share in shares} <= {*its_own, *on_list}:
            return "its node's device plugin can't have given it the cards that its annotation names"
        if not self._adopt_pods and not {share.uuid for share in shares} <= on_list:
            return "adopt_pods is off, and its annotation names other cards than those that list it as a conflict"
        if await enter_shares(self._journal, Adopt(facts.pod, facts.node_name, shares)):
            why = "it was bound without these shares, and names them in its annotation"
            self._trail.note(RecordKind.ADOPTED, facts.pod, facts.node_name, shares, why)
            return ""
        return "they do not all fit; its cards list them as conflicts"

    def _cards_that_list(self, facts: PodFacts) -> set[str]:
        entries = self._ledger.entries_of_node(facts.node_name)
        return {e.card.uuid for e in entries if any(misfit.pod.uid == facts.pod.uid for misfit in e.misfits)}

    async def _show_ambiguous(self, facts: PodFacts, why: str) -> None:
        """List the pod on each card that may be one of its own: an administrator has to look at them."""
        amounts = Amounts(number=1)
        for card in ambiguous_cards(facts, self._cards):
            with suppress(ShareRefused):  # a card lists only so many
                misfit = Misfit(replace(facts.pod, priority=0), amounts, why[:WHY_LENGTH])
                await self._journal.show_conflict(card.uuid, misfit)


class _OpenCards:
    """The ledger's cards that take pods."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def card(self, uuid: str) -> Card | None:
        entry = self._ledger.entry(uuid)
        return entry.card if entry is not None and entry.open else None

    def cards_of(self, node_name: str) -> Sequence[Card]:
        return [entry.card for entry in self._ledger.entries_of_node(node_name) if entry.open and entry.reported]
