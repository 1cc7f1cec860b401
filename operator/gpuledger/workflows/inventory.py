"""From what nodes report to the cards in the ledger: written only when something differs.

A node whose agent's pod is not Ready takes no GPU pods. The kubelet's allocatable amount shows an agent that is gone.
One that hangs keeps its socket, and only its readiness probe shows it. Where no pod of an agent is known, nothing
follows: the agent can be a process of the node, or another system's device plugin.

An Event tells the administrator of nodes on which the policy `topology` falls back, because it knows no links there.

A node whose kubelet hangs takes no more GPU pods either, until it goes on. A kubelet writes `status.startTime` of a pod
that it takes up, before it pulls an image or mounts a volume. A device plugin that does not answer stops the kubelet in
the middle of taking up a pod, and the whole node with it. A pod can also be late by itself: its owner writes so much
into it that its status does not fit in any more. So nothing is concluded from a long one, nor where the kubelet has
taken up another pod that was bound after it, whose-ever it is.

Long before that, the node is the last choice: `SLOW_S` after a pod was bound that has not started. That proves nothing,
and closes nothing; a pod that fits nowhere else still goes there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from attrs import define

from gpuledger.formats.annotations import OWN_NAMESPACE
from gpuledger.formats.custom_resource.stored_card import MAX_LINE, new_allocation, stored_card
from gpuledger.formats.kubernetes.node import (
    AgentPod,
    Inventory,
    NodeFacts,
    agent_pod,
    best_by_node,
    node_facts,
    read_registers,
)
from gpuledger.formats.kubernetes.pod import bound_at, bound_node, has_started, is_finished, is_long, pod_identity
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card, CardPhase, Outage
from gpuledger.model.clock import time_of
from gpuledger.model.errors import BadInput, Conflict, EventReason, Invalid, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod
from gpuledger.placement.policy import FALLBACK, Policy, Preference
from gpuledger.workflows.confirmations import AWAITS, Confirmations
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import AgentChanged, ConfirmationChanged, KubeletChanged
from gpuledger.workflows.new_cards import NewCards
from gpuledger.workflows.tasks import KeyedWorker, Throttle

logger = logging.getLogger(__name__)


SLOW_S = 5.0
"""A pod that was bound so long ago and has not started makes its node the last choice. Kubelets take up a pod within a
second, and Kubernetes needs 40 s to say that a node is dead: until then it would get all pods, as the fullest one."""

LAST_CHOICE_S = 60.0
"""How long a node is the last choice if nothing starts there. By then either Kubernetes has said that it is dead, or
`start_timeout_s` has closed it."""

LEAST_WAIT_S = 5.0
"""How long it takes at least until a pod is looked at again that was bound before this operator came."""

SETTLE_S = 15.0
"""How long a node stays closed after its kubelet goes on: what is known of its device plugin is from before it stood
still, and a kubelet reports its node's status every 10 s (nodeStatusUpdateFrequency). A pod that came to it earlier,
and found the plugin gone, would fail for good."""

LATER_S = 10.0
"""By how much a pod has to be bound after a late one, to be no proof of the order in which a kubelet takes up pods."""

PODS_AT_ONCE = 16


@dataclass(slots=True)
class _Waiting:
    """A bound pod that was not seen to start."""

    pod: Pod
    node_name: str
    bound_at: str
    """RFC 3339, empty if its status does not say."""
    timer: asyncio.TimerHandle
    is_over: bool = False
    """Its time was over before we looked."""


@define(eq=False, slots=False)
class StuckKubelets(Component):
    """Knows the bound pods of ours that have not started, and the nodes on which one is late."""

    def __attrs_post_init__(self) -> None:
        self._timeout_s = self._settings.start_timeout_s
        self._waiting: dict[str, _Waiting] = {}  # pod UID -> pod that has not started, late or not
        self._late: dict[str, set[str]] = {}  # node name -> UIDs of the late pods among them
        self._excused: set[str] = set()  # UIDs of bound pods that are late by themselves
        self._slow: dict[str, asyncio.TimerHandle] = {}  # name of a node that is the last choice -> until when
        self._settling: dict[str, tuple[str, asyncio.TimerHandle]] = {}  # node name -> what was wrong, and till when
        self.worker = KeyedWorker(self._judge, PODS_AT_ONCE)

    def problem(self, node_name: str) -> str:
        """Return the problem of a node's kubelet, an empty string for none: "its kubelet ...".

        It names the pod that was bound first, in whatever order they were seen: every operator says the same.
        """
        late = [self._waiting[uid] for uid in self._late.get(node_name, ())]
        if not late:
            return self._settling[node_name][0] if node_name in self._settling else ""
        first = min(late, key=lambda waiting: (waiting.bound_at, str(waiting.pod)))
        return f"its kubelet has not started pod {first.pod} for {self._timeout_s:g} s"

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """Observe a bound pod. One that was `bound_before` we looked has the less time left, or none."""
        uid = pod["metadata"]["uid"]
        if has_started(pod):
            self._started(uid)
        elif is_finished(pod):
            self.forget_bound(uid)
        elif self._timeout_s and uid not in self._excused:
            age_s = _age_s(pod, self._clock.wall()) if bound_before else 0.0
            if uid not in self._waiting:
                wait_s = max(self._timeout_s - age_s, min(LEAST_WAIT_S, self._timeout_s))
                timer = (
                    self._tasks.after(SLOW_S, self._put_last, uid, wait_s - SLOW_S)
                    if wait_s > SLOW_S
                    else self._timer(uid, wait_s)
                )
                self._waiting[uid] = _Waiting(pod_identity(pod), bound_node(pod), bound_at(pod), timer)
            # At once: an operator that starts must not open a node that hangs.
            if age_s >= self._timeout_s and not is_long(pod):
                self._waiting[uid].is_over = True
                self._note_late(uid)

    def cards_read(self) -> None:
        """Record that the ledger knows who holds what: pods can have been seen before."""
        for uid in [uid for uid, waiting in self._waiting.items() if waiting.is_over]:
            self._note_late(uid)

    def forget_bound(self, pod_uid: str, last: Json | None = None) -> None:
        """Record that a pod is gone, or of no interest any more."""
        self._excused.discard(pod_uid)
        self._drop(pod_uid)

    def _drop(self, pod_uid: str) -> None:
        waiting = self._waiting.pop(pod_uid, None)
        if waiting is None:
            return
        waiting.timer.cancel()
        late = self._late.get(waiting.node_name, set())
        if pod_uid in late:
            late.remove(pod_uid)
            if not late:
                del self._late[waiting.node_name]
            self._events.tell(KubeletChanged(waiting.node_name))

    def _put_last(self, pod_uid: str, left_s: float) -> None:
        """Make the pod's node the last choice; in so many seconds, it is judged."""
        waiting = self._waiting[pod_uid]
        waiting.timer = self._timer(pod_uid, left_s)
        node_name = waiting.node_name
        if not self._ledger.holders.of(pod_uid) and not self._ledger.only_counts(node_name):
            return  # how it came to the node is unknown
        if node_name in self._slow:
            self._slow[node_name].cancel()
        else:
            logger.warning(
                "node %s is the last choice for new pods: its kubelet has not started pod %s for %g s",
                node_name,
                waiting.pod,
                SLOW_S,
            )
        self._ledger.slow.note(node_name, True)
        self._slow[node_name] = self._tasks.after(max(LAST_CHOICE_S, self._timeout_s), self._put_back, node_name)

    def _put_back(self, node_name: str) -> None:
        """Let a node be chosen as others are. Idempotent."""
        timer = self._slow.pop(node_name, None)
        if timer is not None:
            timer.cancel()
            self._ledger.slow.note(node_name, False)

    def _started(self, pod_uid: str) -> None:
        """Record that a pod has started: its kubelet goes on, and gets the whole time again for the other pods."""
        waiting = self._waiting.get(pod_uid)
        if waiting is None:
            return
        self._put_back(waiting.node_name)
        problem = self.problem(waiting.node_name)
        late = self._late.pop(waiting.node_name, None)
        self.forget_bound(pod_uid)
        if late is not None:
            for uid in late - {pod_uid}:
                self._waiting[uid].timer = self._timer(uid, self._timeout_s)
            logger.info("the kubelet of node %s starts pods again", waiting.node_name)
            if waiting.node_name in self._settling:
                self._settling[waiting.node_name][1].cancel()
            timer = self._tasks.after(SETTLE_S, self._settled, waiting.node_name)
            self._settling[waiting.node_name] = problem, timer

    def _settled(self, node_name: str) -> None:
        del self._settling[node_name]
        self._events.tell(KubeletChanged(node_name))

    def known_bound(self) -> set[str]:
        """Return the UIDs of the bound pods that were not seen to start."""
        return self._waiting.keys() | self._excused

    def _timer(self, pod_uid: str, wait_s: float) -> asyncio.TimerHandle:
        return self._tasks.after(wait_s, self.worker.mark, pod_uid)

    async def _judge(self, pod_uid: str) -> None:
        """Close the node of a pod whose time is over, unless that is the pod's own trouble; look again after a while.

        The API server is asked: a watch can lag behind, or be broken.
        """
        waiting = self._waiting.get(pod_uid)
        if waiting is None:
            return
        found = await self._store.pod_now(waiting.pod)
        if found is None:
            self.forget_bound(pod_uid)
            return
        self.observe_bound(found, bound_before=False)
        waiting = self._waiting.get(pod_uid)
        if waiting is None:
            return
        if is_long(found):
            self._excuse(waiting, "its status may be too long for the kubelet to write")
            return
        other = await self._taken_up_later(waiting)
        if self._waiting.get(pod_uid) is not waiting:
            return
        if other is not None:
            self._excuse(waiting, f"pod {other}, which was bound to the same node later, has started")
            return
        self._note_late(pod_uid)
        waiting.timer = self._timer(pod_uid, self._timeout_s)

    def _excuse(self, waiting: _Waiting, why: str) -> None:
        logger.warning("pod %s does not start, but its node is not to blame: %s", waiting.pod, why)
        self._put_back(waiting.node_name)
        self._excused.add(waiting.pod.uid)
        self._drop(waiting.pod.uid)

    async def _taken_up_later(self, waiting: _Waiting) -> Pod | None:
        """Return a pod that the kubelet has taken up though it came to the node well after this one."""
        since = time_of(waiting.bound_at)
        if since is None:
            return None

        def taken_up_later(found: Json) -> Pod | None:
            at = time_of(bound_at(found))
            is_later = has_started(found) and at is not None and at > since + timedelta(seconds=LATER_S)
            return pod_identity(found) if is_later else None

        return next(filter(None, await self._store.pods_of_node(waiting.node_name, taken_up_later)), None)

    def _note_late(self, pod_uid: str) -> None:
        """Close the pod's node, if it still waits for its kubelet."""
        waiting = self._waiting.get(pod_uid)
        # A pod that holds no card is no proof: how it came to the node is unknown.
        if waiting is None or not self._ledger.holders.of(pod_uid):
            return
        before = self.problem(waiting.node_name)
        self._late.setdefault(waiting.node_name, set()).add(pod_uid)
        problem = self.problem(waiting.node_name)
        if problem != before:
            logger.warning("node %s takes no GPU pods: %s", waiting.node_name, problem)
            self._events.tell(KubeletChanged(waiting.node_name))


def _age_s(pod: Json, now: datetime) -> float:
    """Return how long the pod has been bound by now; 0 if it does not say."""
    at = time_of(bound_at(pod))
    return 0.0 if at is None else max(0.0, (now - at).total_seconds())


@define(eq=False, slots=False)
class AgentPods(Component):
    """The nodes that have an agent's pod, and those of them whose pod is Ready."""

    def __attrs_post_init__(self) -> None:
        self._known: dict[str, AgentPod] = {}  # UID of an agent's pod -> where it is
        self._pods: dict[str, dict[str, bool]] = {}  # node name -> UID of an agent's pod -> whether it is Ready

    def not_ready(self, node_name: str) -> bool:
        """Return whether the node has an agent's pod, and none that is Ready."""
        pods = self._pods.get(node_name)
        return pods is not None and not any(pods.values())

    def pod_of(self, node_name: str) -> Pod | None:
        """Return a node's agent's pod, one that is Ready if there is one; None if it has none."""
        pods = self._pods.get(node_name)
        if not pods:
            return None
        uid = max(pods, key=lambda uid: pods[uid])
        return Pod(uid, OWN_NAMESPACE, self._known[uid].name)

    def by_node(self) -> dict[str, AgentPod]:
        """Return node name -> its agent's pod, one that is Ready if there is one."""
        return best_by_node(self._known.values())

    def observe(self, pod: Json, gone: bool) -> None:
        """Observe an agent's pod."""
        uid, agent = pod["metadata"]["uid"], agent_pod(pod)
        if gone:
            self._forget(uid)
        elif agent.node_name:
            before = self._state(agent.node_name)
            self._known[uid] = agent
            self._pods.setdefault(agent.node_name, {})[uid] = agent.ready
            self._notify(agent.node_name, before)

    def listing(self) -> Listed:
        """Return a function that forgets the present pods that are missing in a later list."""
        return forgetting(self._known, self._forget)

    def _forget(self, uid: str) -> None:
        if uid not in self._known:
            return
        node_name = self._known[uid].node_name
        before = self._state(node_name)
        pods = self._pods[node_name]
        del pods[uid], self._known[uid]
        if not pods:
            del self._pods[node_name]
        self._notify(node_name, before)

    def _state(self, node_name: str) -> tuple[bool, Pod | None]:
        return self.not_ready(node_name), self.pod_of(node_name)

    def _notify(self, node_name: str, before: tuple[bool, Pod | None]) -> None:
        if self._state(node_name) != before:
            self._events.tell(AgentChanged(node_name))


NODES_AT_ONCE = 16
"""Nodes whose cards are written at the same time: a cluster that starts up must not flood the API server."""

MAX_PROBLEMS = 8
"""How many problems of a node are reported one by one: a register can have 1,024 of them."""

UNACCOUNTED = "a pod may use it whose share is not in the ledger: `gpuledger audit` and `explain` name it"
"""Without names and numbers: it is written when it begins and when it ends, however many there are."""


@define(eq=False, slots=False)
class InventoryKeeper(Component):
    """Keeps the cards of the ledger equal to what nodes report."""

    _agents: AgentPods
    _starts: StuckKubelets

    def __attrs_post_init__(self) -> None:
        self.confirmations = Confirmations(self._context, self._agents.pod_of)
        self._facts: dict[str, NodeFacts] = {}  # node name -> what was seen of it last
        self.cards: dict[str, dict[str, Card]] = {}
        """Node name -> card UUID -> card, from its last readable register; for others to read."""
        self._claims: dict[str, str] = {}  # card UUID -> the node whose card it is, by the registers
        self._reported_problems: dict[str, tuple[str, ...]] = {}  # node name -> the problems that its last Events named
        self._was_healthy: dict[str, bool] = {}  # card UUID -> before a change whose answer has not come yet
        self._all_seen = False
        self._gone_early: set[str] = set()  # names of nodes that went before all had been seen
        self._throttle = Throttle()
        self._left_out: dict[str, set[str]] = {}  # card UUID -> nodes that report it while another one has it
        self.worker = KeyedWorker(self._sync, NODES_AT_ONCE, self._is_active)
        self._new_cards = NewCards(self._context, self.worker.idle)
        self._events.on(AgentChanged, lambda event: self.reconsider(event.node_name))
        self._events.on(KubeletChanged, lambda event: self.reconsider(event.node_name))
        self._events.on(ConfirmationChanged, lambda event: self.reconsider(event.node_name))
        self._ledger.strangers.on_change.append(self.reconsider)
        self._journal.on_lost.append(self.recheck)

    def observe_node(self, node: Json) -> None:
        """Observe a Node. Equal facts cost only a comparison. Raises BadInput for one that can't be read."""
        self.confirmations.observe_node(node)
        facts = node_facts(node, self._formats.dialects)
        self._counts.node_events.inc()
        before = self._facts.get(facts.name)
        if facts == before:
            return
        self._counts.nodes_examined.inc()
        self._facts[facts.name] = facts
        self._open_or_close(facts)
        if before is None or replace(before, offer=facts.offer, host=facts.host) != facts:
            self._read(facts)
        if self.cards.get(facts.name) or self._ledger.entries_of_node(facts.name):
            self.worker.mark(facts.name)

    def forget_node(self, node_name: str) -> None:
        """Record that a Node is gone. Cards with holders stay in the ledger; no one new gets them."""
        self._facts.pop(node_name, None)
        self.confirmations.forget_node(node_name)
        if not self._all_seen:
            self._gone_early.add(node_name)
        given_up = self._give_up_claims(node_name)
        self._reported_problems.pop(node_name, None)
        self._ledger.set_offer(node_name, None)
        self._ledger.hosts.set_capacity(node_name, None)
        self._ledger.hosts.set_replicated(node_name, False)
        self.recheck(node_name)
        for uuid in given_up:
            self._offer_to_others(uuid)

    def reconsider(self, node_name: str) -> None:
        """Record that its agent's pod, its kubelet or a stranger has begun or ceased to keep a node from new pods."""
        facts = self._facts.get(node_name)
        if facts is not None:
            self._open_or_close(facts)
            self.worker.mark(node_name)

    def recheck(self, node_name: str) -> None:
        """Compare a node's cards in the ledger with its register again."""
        self._note_reported(node_name, self._ledger.entries_of_node(node_name))
        self.worker.mark(node_name)

    def observe_card(self, entry: CardEntry) -> None:
        """Record that a card was written: what another client has changed of it is corrected.

        At once; if that goes on, later and later: it may be another operator, which sees the node differently.
        """
        self.confirmations.observe_card(entry)
        node_name = entry.card.node_name
        reported = self.cards.get(node_name, {}).get(entry.card.uuid)
        self._note_reported(node_name, [entry])  # it may be new, from an operator that has not seen it go
        if node_name in self._left_out.get(entry.card.uuid, ()):
            self._offer_to_others(entry.card.uuid)  # it has gone to another node that reports it
        if not entry.listed:
            self._mark_claimant(entry.card)
        is_left = not entry.reported and not entry.listed  # its last holder has left, or another operator has made it
        is_other = reported is not None and reported != entry.card
        if is_left or is_other or (entry.open and (entry.phase, entry.reason) != self._phase(entry)):
            self._throttle.call(node_name, self.worker.mark)

    def gone(self, card: Card) -> None:
        """Record that a card's object was deleted, by any client: the node that has the card gets it again.

        At once; if that goes on, later and later, as in `observe_card`.
        """
        if card.uuid in self.cards.get(card.node_name, {}):
            self._throttle.call(card.node_name, self.worker.mark)
        self._mark_claimant(card)

    def _mark_claimant(self, card: Card) -> None:
        """Have another node looked at whose card it is by the registers, if its object is not there, or elsewhere."""
        claimant = self._claims.get(card.uuid, card.node_name)
        if claimant != card.node_name:
            self._throttle.call(claimant, self.worker.mark)

    def became_active(self) -> None:
        """Compare all nodes' cards in the ledger with their registers again, which node has which card too."""
        for facts in list(self._facts.values()):
            self._read(facts)
        for node_name in self.known_nodes() | set(self._ledger.node_names()):
            self.recheck(node_name)

    def all_seen(self) -> None:
        """Record that every Node was shown once: nodes that were not are gone."""
        if not self._all_seen:
            self._all_seen = True
            self._gone_early.clear()
            for uuid in list(self._left_out):
                self._offer_to_others(uuid)
            for node_name in set(self._ledger.node_names()) - self._facts.keys():
                self.recheck(node_name)

    def known_nodes(self) -> set[str]:
        """Return the nodes that exist, as far as is known."""
        return set(self._facts)

    def _open_or_close(self, facts: NodeFacts) -> None:
        """Note, in memory, whether a node takes pods, as far as it is not about its cards."""
        offer = None if self._agents.not_ready(facts.name) else facts.offer
        self._ledger.set_offer(facts.name, offer, hangs=bool(self._starts.problem(facts.name)))
        self._ledger.hosts.set_capacity(facts.name, facts.host if facts.takes_pods else None)
        self._ledger.hosts.set_replicated(facts.name, facts.replicated)

    def _read(self, facts: NodeFacts) -> None:
        try:
            inventory = read_registers(facts)
        except BadInput as error:  # what was known of the node stays as it is
            self._report_problems(facts.name, (f"{error}; its cards stay as they are in the ledger",))
            return
        given_up = self._give_up_claims(facts.name)
        self.cards[facts.name] = self._own_cards(facts.name, inventory)
        self._claims |= dict.fromkeys(self.cards[facts.name], facts.name)
        self._note_reported(facts.name, self._ledger.entries_of_node(facts.name))
        for uuid in given_up - self.cards[facts.name].keys():
            self._offer_to_others(uuid)

    def _give_up_claims(self, node_name: str) -> set[str]:
        """Forget which cards are a node's; return them, by UUID."""
        given_up = set(self.cards.pop(node_name, ()))
        for uuid in given_up:
            if self._claims.get(uuid) == node_name:
                del self._claims[uuid]
        return given_up

    def _own_cards(self, node_name: str, inventory: Inventory) -> dict[str, Card]:
        """Return the reported cards that no other node has; tell the node of the others, and of unreadable ones."""
        problems, cards = list(inventory.problems), {}
        for card in inventory.cards:
            owner = self._other_owner(card)
            if owner:
                self._left_out.setdefault(card.uuid, set()).add(node_name)
                problems.append(
                    f"card {card.uuid} belongs to node {owner}, which holds or reports it; it is ignored here"
                )
            else:
                entry = self._ledger.entry(card.uuid)
                alike = entry is not None and entry.card == card and not card.fault  # which is not compared
                known = entry.card if entry is not None and alike else card
                cards[known.uuid] = known  # one object for both: large clusters have tens of thousands
        self._report_problems(node_name, tuple(problems))
        return cards

    def _other_owner(self, card: Card) -> str | None:
        entry = self._ledger.entry(card.uuid)
        if entry is None:
            claimant = self._claims.get(card.uuid, card.node_name)
            return claimant if claimant != card.node_name else None
        if entry.card.node_name == card.node_name:
            return None
        owner = entry.card.node_name
        may_report_it = owner not in self._facts and not self._all_seen
        return owner if entry.listed or may_report_it or card.uuid in self.cards.get(owner, {}) else None

    def _report_problems(self, node_name: str, problems: tuple[str, ...]) -> None:
        if problems and self._reported_problems.get(node_name) != problems:
            self._counts.bad_input.labels("node").inc(len(problems))
            named, left = problems[:MAX_PROBLEMS], len(problems) - MAX_PROBLEMS
            if left > 0:
                named += (
                    f"node {node_name}: {left:,} more; `kubectl gpuledger inspect node/{node_name}` lists all of them",
                )
            for problem in named:
                logger.warning("%s", problem)
                self._event_recorder.post_node_event(node_name, problem)
        self._reported_problems[node_name] = problems

    def _note_reported(self, node_name: str, entries: Iterable[CardEntry]) -> None:
        """Close at once, in memory, what a node does not report any more, or as sick; writing it down takes longer."""
        if self._is_unread(node_name):
            return
        cards = self.cards.get(node_name, {})
        for entry in entries:
            card = cards.get(entry.card.uuid)
            self._ledger.set_reported(entry.card.uuid, card is not None, sick=card is not None and not card.healthy)

    def _is_unread(self, node_name: str) -> bool:
        """Return whether a node's cards are unknown: its register was never readable, or never observed."""
        was_shown = self._all_seen or node_name in self._gone_early
        return node_name not in self.cards and (node_name in self._facts or not was_shown)

    async def _sync(self, node_name: str) -> None:
        """Write what differs between a node's cards and the ledger."""
        if self._is_unread(node_name):
            return
        known = map(self._ledger.entry, self.cards.get(node_name, ()))
        if any(each and each.listed and each.card.node_name != node_name for each in known):
            self._read(self._facts[node_name])  # such a card stays in its former node until it is free
        cards = self.cards.get(node_name, {})
        refused: Invalid | None = None
        for card in cards.values():
            try:
                await self._write_card(card)
            except Invalid as error:  # must not keep its neighbours out
                refused = error
        entries = self._ledger.entries_of_node(node_name)
        self._note_reported(node_name, entries)
        for entry in entries:
            is_out_of_use = entry.cordoned and node_name in self._facts  # if it comes back, it is not to take pods
            if entry.card.uuid not in cards and not entry.listed and not entry.ended and not is_out_of_use:
                await self._delete(entry)
            else:
                phase, reason = self._phase(entry)
                if phase == CardPhase.PENDING and self.confirmations.is_quiet(entry):
                    continue
                if not (entry.stored and entry.open and (entry.phase, entry.reason) == (phase, reason)):
                    await self._journal.describe(entry.card.uuid, phase, reason)
        self.confirmations.ask(node_name)
        if refused:
            raise refused  # tried again later: what stands in the way can go away

    async def _write_card(self, card: Card) -> None:
        entry = self._ledger.entry(card.uuid)
        if entry is None or not entry.stored:
            try:
                created = await self._store.create_allocation(new_allocation(card))
                self._new_cards.add(card.object_name)
                self.confirmations.created(card)
                self._ledger.load(stored_card(created))
            except Conflict:  # it exists: memory is behind, or a watch wrongly showed it as gone
                self._ledger.load(stored_card(await self._store.allocation(card.object_name)), is_found=True)
            self._counts.cards_written.inc()
            entry = self._ledger.entry(card.uuid)
        if entry is not None and entry.card != card:
            self._was_healthy.setdefault(card.uuid, entry.card.healthy)
            stored = await self._store.replace_allocation_spec(card.object_name, new_allocation(card))
            self._counts.cards_written.inc()
            self._ledger.load(stored_card(stored))
        if self._was_healthy.pop(card.uuid, card.healthy) != card.healthy:
            self._tell_holders(card)

    def _tell_holders(self, card: Card) -> None:
        """Post an Event to the pods on a card: its fault, or its recovery."""
        where = f"GPU {card.uuid} (index {card.index} of node {card.node_name})"
        reason, text = EventReason.UNHEALTHY, f"{where}: {_fault(card)}"
        if card.healthy:
            reason, text = EventReason.HEALTHY, f"{where} works again, as its node reports"
        entry = self._ledger.entry(card.uuid)
        for holder in entry.holders.values() if entry else ():
            self._event_recorder.post_pod_event(holder.pod, not card.healthy, reason, text)

    async def _delete(self, entry: CardEntry) -> None:
        """Delete a card that is gone; a holder that came in between makes the precondition fail."""
        version = entry.resource_version
        if entry.stored:
            with suppress(NotFound):
                await self._store.delete_allocation(entry.card.object_name, version)
            self._counts.cards_written.inc()
        self._ledger.unload(entry.card.uuid, version)
        self._offer_to_others(entry.card.uuid)
        self._mark_claimant(entry.card)

    def _offer_to_others(self, uuid: str) -> None:
        """Let a card that its node has given up go to another one that reports it."""
        for node_name in self._left_out.pop(uuid, ()):
            facts = self._facts.get(node_name)
            if facts is not None:
                self._read(facts)
                self.worker.mark(node_name)

    def _phase(self, entry: CardEntry) -> tuple[str, str]:
        node_name = entry.card.node_name
        if self.confirmations.awaits(entry):
            return CardPhase.PENDING, AWAITS
        if node_name not in self._facts:
            return CardPhase.UNAVAILABLE, Outage.NODE_GONE.value
        if not entry.reported:
            return CardPhase.UNAVAILABLE, Outage.NOT_REPORTED.value
        if self._ledger.offer(node_name) is None:
            return CardPhase.UNAVAILABLE, Outage.AGENT_NOT_READY.value
        problem = self._starts.problem(node_name)
        if problem:
            return CardPhase.UNAVAILABLE, problem[:MAX_LINE]
        if not entry.card.healthy:
            reported = self.cards.get(node_name, {}).get(entry.card.uuid, entry.card)
            return CardPhase.UNHEALTHY, _fault(reported)[:MAX_LINE]
        if entry.cordoned:
            return CardPhase.CORDONED, entry.cordoned[:MAX_LINE]
        strangers = self._ledger.strangers
        if not strangers.listed and entry.phase == CardPhase.UNACCOUNTED:  # not all pods were read yet
            return CardPhase.UNACCOUNTED, entry.reason
        if strangers.is_closed(entry):
            return CardPhase.UNACCOUNTED, UNACCOUNTED
        return CardPhase.READY, ""


def _fault(card: Card) -> str:
    return f"its node reports a fault: {card.fault}" if card.fault else "its node reports a fault"


class NodesWithoutTopology:
    """Finds them, if the cluster's policy is `topology`, and tells of each once."""

    def __init__(self, ledger: Ledger, policy: Policy) -> None:
        self._ledger = ledger
        self._watched = Preference.TOPOLOGY in (policy.nodes, policy.cards)
        self._logged: set[str] = set()  # names of nodes that the log has

    def __iter__(self) -> Iterator[str]:
        """Yield the names of nodes with several cards and no link between them."""
        if self._watched:
            for name in list(self._ledger.node_names()):
                node = self._ledger.node_room(name)
                if len(node.cards) > 1 and (node.topology is None or not node.topology.linked):
                    yield name

    def log_new(self) -> None:
        """Log those that were not among them before."""
        names = set(self)
        for name in sorted(names - self._logged):
            logger.warning(
                "node %s: its cards report no links; the policy topology chooses as %s there", name, FALLBACK
            )
        self._logged = names
