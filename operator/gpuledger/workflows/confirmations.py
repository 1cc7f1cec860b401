"""Cards whose object is new take no pods before their node's agent has told what containers have of them.

The object of a card is new when the card is, and when its old one was lost: then its holders are, too, while their
containers run on. The operator can't tell these apart. So a new card is `Pending`, and the operator asks its node's
agent, by a token in an annotation of the agent's pod (formats/confirmation.py). What the agent has given out is entered
first. Then come bound pods that have no container yet, by their annotation; nobody else can have been given the room
meanwhile. A container whose pod the API server does not know counts like that of a pod that was deleted by force: until
the agent reports that nothing of it is left.

After etcd was put back, cards can be as old as ever, and yet lack what was given out since. Then the agent reports that
something runs of a pod that has no share there (formats/annotations.py). That closes the node's cards, too, until the
agent has told what the pod has.

The phase at the API server is the memory of it all: an operator that comes later finds a card Pending, and asks anew.
Where another system's device plugin serves a node, or an agent of an earlier release, nobody answers, and nobody is
asked.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from attrs import define

from gpuledger.formats.annotations import read_ends
from gpuledger.formats.confirmation import CONFIRM_ANNOTATION, Answer, answer_of, read_answer
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION
from gpuledger.formats.kubernetes.pod import is_finished, pod_identity, scheduler_of
from gpuledger.ledger.adoption import Adopt, lacks_cards, missing_shares
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Amounts, Card, CardPhase
from gpuledger.model.errors import BadInput, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.node import AnnotatedCard, PodFacts
from gpuledger.model.share import Pod, Share
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import AgentChanged, ConfirmationChanged
from gpuledger.workflows.journal.adopting import OpenCards, enter_shares
from gpuledger.workflows.tasks import KeyedWorker, gather_all

logger = logging.getLogger(__name__)

AWAITS = "its object is new, and its node's agent has not said yet what containers have of the card"
"""The reason of a card's phase, without names and numbers: it is written once."""

NODES_AT_ONCE = 16

ANSWERS_WITHIN_S = 3.0
"""For so long a card has no status yet: most answers come sooner, and the first status says then that it is Ready."""

ASK_AGAIN_S = 30.0
"""After this another operator's question that stands in place of ours is replaced: two may be active for a while."""


@dataclass(frozen=True, slots=True)
class _Question:
    """The last one to a node."""

    token: str
    pod: Pod
    """The agent's."""
    cards: frozenset[str]
    """UUIDs of those whose objects were there when it was made up."""
    answered_before: str
    """The token that the Node's answer had then."""
    asked_s: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """The answer that a Node carries."""

    text: str
    """As it is written."""
    answer: Answer | None
    """None if it can't be read."""


@define(eq=False, slots=False)
class Confirmations(Component):
    """Asks agents, enters what they answer, and knows the cards that wait for it."""

    _agent_of: Callable[[str], Pod | None]
    """Returns the pod of a node's agent."""

    def __attrs_post_init__(self) -> None:
        self._seen: dict[str, _Seen] = {}  # name of a node whose agent answers -> its answer
        self._ours: dict[str, bool] = {}  # node name -> whether an agent of ours lists its cards
        self._questions: dict[str, _Question] = {}  # node name -> the last question
        self._reported: dict[str, frozenset[str]] = {}  # node name -> UIDs of pods of which it says that something runs
        self._doubtful: dict[str, frozenset[str]] = {}  # node name -> those of them that had no share there
        self._confirmed: set[str] = set()  # UUIDs of cards that are to open: their phase is not written yet
        self._cards = OpenCards(self._ledger)
        self.worker = KeyedWorker(self._work, NODES_AT_ONCE, self._is_active)
        self._events.on(AgentChanged, lambda event: self.ask(event.node_name))

    def observe_node(self, node: Json) -> None:
        """Observe a Node: an answer that can't be read is none."""
        name, text = node["metadata"]["name"], answer_of(node)
        self._note_running(name, node)
        before = self._seen.get(name)
        self._ours[name] = is_ours = REGISTER_ANNOTATION in (node["metadata"].get("annotations") or {})
        if text is None or not is_ours:
            self._seen.pop(name, None)
        elif before is None or before.text != text:
            self._seen[name] = _Seen(text, self._read(name, text))
            self.ask(name)

    def forget_node(self, node_name: str) -> None:
        """Record that a Node is gone."""
        for each in (self._seen, self._ours, self._questions, self._reported, self._doubtful):
            each.pop(node_name, None)

    def observe_card(self, entry: CardEntry) -> None:
        """Record that a card was written."""
        if entry.confirmed:
            self._confirmed.discard(entry.card.uuid)

    def created(self, card: Card) -> None:
        """Record that a card has a new object: what was asked, or confirmed, of an earlier one says nothing of it."""
        self._confirmed.discard(card.uuid)
        self._questions.pop(card.node_name, None)

    def awaits(self, entry: CardEntry) -> bool:
        """Return whether a card has to stay closed until its node's agent has answered."""
        if entry.card.uuid in self._confirmed:
            return False
        if entry.confirmed:
            node_name = entry.card.node_name
            return any(not self._holds(uid, node_name) for uid in self._doubtful.get(node_name, ()))
        has_waited = entry.phase == CardPhase.PENDING and entry.reason == AWAITS
        is_ours = self._ours.get(entry.card.node_name)
        if is_ours is None:  # whether its agent answers is known when the Node comes
            return has_waited or not entry.open
        return (has_waited and (is_ours or not entry.reported)) or entry.card.node_name in self._seen

    def is_quiet(self, entry: CardEntry) -> bool:
        """Return whether a card that waits is not to say so yet. One with holders is stored with them at once."""
        question = self._questions.get(entry.card.node_name)
        has_agent = self._agent_of(entry.card.node_name) is not None and entry.card.node_name in self._seen
        is_late = question is not None and self._clock.now_s() >= question.asked_s + ANSWERS_WITHIN_S
        return not entry.open and not entry.listed and has_agent and not is_late

    def ask(self, node_name: str) -> None:
        """Have a node's agent asked, if cards of it wait for that."""
        if self._waiting(node_name):
            self.worker.mark(node_name)

    def _waiting(self, node_name: str) -> frozenset[str]:
        entries = self._ledger.entries_of_node(node_name)
        return frozenset(each.card.uuid for each in entries if each.stored and self.awaits(each))

    async def _work(self, node_name: str) -> None:
        waiting, question = self._waiting(node_name), self._questions.get(node_name)
        if not waiting:
            self._questions.pop(node_name, None)
            return
        seen, pod = self._seen.get(node_name), self._agent_of(node_name)
        if seen is None or pod is None:
            return  # until its agent is there, and says that it answers
        answered = seen.answer.token if seen.answer is not None else ""
        if question is None or not waiting <= question.cards:
            await self._ask(node_name, pod, waiting, answered)
        elif seen.answer is not None and answered == question.token:
            await self._enter(node_name, seen.answer)
            if self._questions.get(node_name) is not question:
                return  # a card has a new object since, or something else runs: that is asked anew
            self._confirmed |= waiting
            self._doubtful.pop(node_name, None)
            logger.info("node %s: its agent has confirmed what %d new cards are used for", node_name, len(waiting))
            del self._questions[node_name]
            self._events.tell(ConfirmationChanged(node_name))
        elif pod.uid != question.pod.uid or self._was_crossed(question, answered):
            await self._ask(node_name, pod, waiting, answered)

    def _was_crossed(self, question: _Question, answered: str) -> bool:
        """Return whether the agent has answered another operator's question, which stood in the place of ours."""
        is_late = self._clock.now_s() >= question.asked_s + ASK_AGAIN_S
        return is_late and answered != question.answered_before

    async def _ask(self, node_name: str, pod: Pod, cards: frozenset[str], answered: str) -> None:
        """Write a question. Raises ApiError: then it is tried again, with another token."""
        question = _Question(secrets.token_hex(8), pod, cards, answered, self._clock.now_s())
        self._questions[node_name] = question
        try:
            await self._store.annotate_pod(pod, CONFIRM_ANNOTATION, question.token)
        except NotFound:
            self._questions.pop(node_name, None)  # the next agent is asked when it comes
            return
        except BaseException:
            self._questions.pop(node_name, None)
            raise
        self._tasks.after(ANSWERS_WITHIN_S, self._events.tell, ConfirmationChanged(node_name))
        self._tasks.after(ASK_AGAIN_S, self.worker.mark, node_name)

    def _note_running(self, node_name: str, node: Json) -> None:
        """Close a node's cards, if it says for the first time that something runs of a pod that has no share there."""
        try:
            running = frozenset(uid for uid, runs in (read_ends(node) or {}).items() if runs)
        except BadInput:
            return  # which is logged where ends are followed
        new = running - self._reported.get(node_name, frozenset())
        self._reported[node_name] = running
        unknown = [uid for uid in new if not self._holds(uid, node_name)]
        if unknown and answer_of(node) is not None:
            logger.warning("node %s: %d pods run there that have no share: its agent is asked", node_name, len(unknown))
            self._confirmed -= {entry.card.uuid for entry in self._ledger.entries_of_node(node_name)}
            self._questions.pop(node_name, None)
            self._doubtful[node_name] = frozenset(unknown)
            self._events.tell(ConfirmationChanged(node_name))

    def _holds(self, pod_uid: str, node_name: str) -> bool:
        return any(card.node_name == node_name for card, _ in self._ledger.holders.of(pod_uid))

    def _read(self, node_name: str, text: str) -> Answer | None:
        try:
            return read_answer(text)
        except BadInput as error:
            self._counts.bad_input.labels("node").inc()
            logger.warning("node %s: %s", node_name, error)
            return None

    # What was answered.

    async def _enter(self, node_name: str, answer: Answer) -> None:
        """Enter what pods of a node have: first by the agent's word, then by their annotations. Idempotent."""
        here = await self._store.pods_of_node(node_name, self._facts)
        pods = {facts.pod.uid: facts for facts in here if facts is not None}
        if answer.holders or any(facts.needs_cards for facts in pods.values()):
            entries = [each for each in self._ledger.entries_of_node(node_name) if each.stored and not each.open]
            await gather_all([self._journal.describe(e.card.uuid, CardPhase.PENDING.value, AWAITS) for e in entries])
        granted: dict[Pod, list[Share]] = {}
        for holder in answer.holders:
            granted.setdefault(holder.pod, []).append(holder.share)
        for pod, shares in sorted(granted.items(), key=lambda each: str(each[0])):
            facts = pods.pop(pod.uid, None)
            await self._enter_pod(facts.pod if facts else pod, node_name, self._by_agent(facts, shares))
        for facts in sorted(pods.values(), key=lambda each: str(each.pod)):
            await self._enter_pod(facts.pod, node_name, self._by_annotation(facts))

    def _facts(self, pod: Json) -> PodFacts | None:
        """Return what matters of a pod that may hold cards of its node, None for others."""
        if is_finished(pod) or scheduler_of(pod) not in self._settings.scheduler_names:
            return None
        try:
            return self._formats.facts(pod)
        except BadInput as error:
            logger.warning("pod %s: %s", pod_identity(pod), error)
            return None

    async def _enter_pod(self, pod: Pod, node_name: str, shares: Sequence[Share]) -> None:
        """Enter those of a pod's shares that the ledger lacks; those that do not fit are listed as conflicts."""
        has = {card.uuid for card, _ in self._ledger.holders.of(pod.uid)}
        missing = tuple(share for share in shares if share.uuid not in has)
        if missing and await enter_shares(self._journal, Adopt(pod, node_name, missing)):
            why = "its card's object was new, and its node's agent has confirmed what the pod has"
            self._trail.note(RecordKind.ADOPTED, pod, node_name, missing, why)

    def _by_agent(self, facts: PodFacts | None, shares: Sequence[Share]) -> Sequence[Share]:
        """Return the shares of a pod that has been granted these: as its spec has them, if that agrees.

        Containers that have not started yet have their part by the pod's annotation.
        """
        known = [share for share in map(self._within_card, shares) if share is not None]
        if facts is None or facts.request is None:
            return known
        parts = tuple(
            AnnotatedCard(part.name, share.uuid, part.memory_mib, part.cores)
            for share in known
            for part in share.containers
        )
        names = {part.container for part in parts}
        parts += tuple(each for each in facts.annotated or () if each.container not in names)
        has_claims = any(part.claim is not None for share in known for part in share.containers)
        said = facts if has_claims else replace(facts, annotated=parts, bad_annotation="")
        try:
            exact = missing_shares(said, (), self._cards)
        except BadInput as error:
            logger.warning("pod %s is entered as its node's agent has it: %s", facts.pod, error)
            return known
        found = {share.uuid: share for share in exact}
        return [*exact, *(share for share in known if share.uuid not in found)]

    def _within_card(self, share: Share) -> Share | None:
        """Return a share of a card that is there, of as much as the card has at most."""
        entry = self._ledger.entry(share.uuid)
        if entry is None:
            return None
        all_of_it = entry.card.capacity
        amounts = Amounts(
            min(share.amounts.memory_mib, all_of_it.memory_mib),
            min(share.amounts.cores, all_of_it.cores),
            min(share.amounts.number, all_of_it.number),
        )
        return replace(share, amounts=amounts)

    def _by_annotation(self, facts: PodFacts) -> Sequence[Share]:
        """Return the shares of a pod that has no container yet with cards, and was bound before its cards were lost."""
        held = [h.share for card, h in self._ledger.holders.of(facts.pod.uid) if card.node_name == facts.node_name]
        if not facts.request or not facts.needs_cards or not facts.taken_up or not lacks_cards(held, facts.request):
            return ()
        try:
            return missing_shares(facts, held, self._cards)
        except BadInput as error:
            logger.warning("pod %s is not entered: %s; its containers can't start", facts.pod, error)
            return ()
