"""Asks for nodes when pods wait for cards, as many as `placement/growth.py` finds, and gives up what is not needed.

Nothing that is decided here is kept: the next look finds it again from pods, nodes and stand-ins.

A stand-in is deleted *before* the first pod is bound to its node. Otherwise the node is not empty any more in an
autoscaler's eyes while the stand-in still wants one, and one node too many comes. So a new node takes no pods while a
stand-in stands for it (`Ledger.arriving`), from the moment when the Node is seen. Which of a template's stand-ins does
so does not matter, as they are alike: the oldest one does for the oldest new node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attrs import define

from gpuledger.configuration.node_templates import NewNodes
from gpuledger.model.clock import Backoff, rfc3339
from gpuledger.model.errors import EventReason
from gpuledger.model.json_object import Json
from gpuledger.placement.growth import Growth, NodeTemplate, Seekers, Why, find_growth
from gpuledger.reports.explanation import NewNodes as AnsweredNodes
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import MemberRefused, PodRefused
from gpuledger.workflows.growth.demand import Demand, Seeking
from gpuledger.workflows.growth.stand_ins import StandIns
from gpuledger.workflows.growth.templates import SeenNode, Templates
from gpuledger.workflows.tasks import TURN_S

logger = logging.getLogger(__name__)

SETTLE_S = 0.2
"""Before a look: what changes until then is one look."""

REST_TO_WORK = 3.0
"""How long the search rests, by how long it has worked: most of the time is for pods that find cards."""

STALE_TRIES = 4
"""Searches in a row during which the ledger has changed; after so many, the least that they have found counts."""

COMPLETE_S = 30.0
"""How long a new node that has all its cards may lack a resource that its template has, before it takes pods."""

LONGEST_PAUSE_S = 3_600.0
"""Of a template whose nodes do not come."""


@dataclass(frozen=True, slots=True)
class NodesWanted:
    """How many nodes of a template are wanted now."""

    template: str
    count: int
    since: str
    """Since when there is a number that is not 0, RFC 3339."""
    served: tuple[str, ...]
    """For whom: UIDs of pods, `gang NAMESPACE/NAME`, `workload NAMESPACE/NAME`; they may be old."""


@dataclass(slots=True)
class _State:
    """Of a template."""

    backoff: Backoff
    wanted: NodesWanted | None = None
    paused_until_s: float = 0.0


@dataclass(slots=True)
class _Arrival:
    """A new node that a stand-in stands for."""

    stand_in: str
    complete_s: float | None = None
    """When it had all its cards, by the operator's clock; None: not yet."""


@define(eq=False, slots=False)
class NodeGrowth(Component):
    """The part that decides."""

    _demand: Demand
    _templates: Templates
    _stand_ins: StandIns
    _is_complete: Callable[[str], bool]
    """Whether all cards that a node reports are in the ledger."""

    def __attrs_post_init__(self) -> None:
        settings = self._settings
        self._states = {
            each.name: _State(Backoff(settings.growth_patience_s, max(LONGEST_PAUSE_S, settings.growth_patience_s)))
            for each in self._templates.settings
        }
        self._arrivals: dict[str, _Arrival] = {}  # node name -> what it waits for
        self._passed: set[str] = set()  # names of nodes of templates that take pods
        self._asked_s: dict[str, float] = {}  # name of a stand-in -> when it was seen first
        self.unhelped: Mapping[str, Mapping[str, Why]] = {}
        """Who waits, as in `NodesWanted.served`, and finds no room with any nodes -> template -> why."""
        self.changed = asyncio.Event()
        """Set when there may be something to decide."""
        self._stand_ins.on_change.append(self._stand_ins_changed)
        self._ledger.on_change.append(self._ledger_changed)
        self._events.on(PodRefused, self._is_refused)
        self._events.on(MemberRefused, self._is_refused)

    # What is known.

    def wanted(self) -> list[NodesWanted]:
        """Return the templates of which nodes are wanted."""
        return [state.wanted for state in self._states.values() if state.wanted is not None]

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return template -> how many nodes are wanted, and how many stand-ins there are."""
        return {
            name: (state.wanted.count if state.wanted else 0, self._stand_ins.count(name))
            for name, state in self._states.items()
        }

    def said_of(self, seekers: Sequence[str]) -> list[AnsweredNodes]:
        """Return what the last look has found for somebody who waits, named as in `NodesWanted.served`."""
        wanted = [each for each in self.wanted() if not {*seekers}.isdisjoint(each.served)]
        reasons = {template: text for name in seekers for template, (_, text) in self.unhelped.get(name, {}).items()}
        return [
            *(AnsweredNodes(each.template, each.count, each.since, "") for each in wanted),
            *(AnsweredNodes(template, 0, None, text) for template, text in reasons.items()),
        ]

    # What the watches show.

    def observe_node(self, node: Json) -> None:
        """See Follower."""
        self._update_arrivals()

    def forget_node(self, node_name: str) -> None:
        """See Follower."""
        self._arrivals.pop(node_name, None)
        self._passed.discard(node_name)
        self._ledger.arriving.note(node_name, False)

    def observe_pending(self, pod: Json) -> None:
        """See Follower."""
        if self._states:
            self.changed.set()

    def forget_pending(self, pod_uid: str) -> None:
        """See Follower."""
        if self._states:
            self.changed.set()

    def became_active(self) -> None:
        """See Follower."""
        self._update_arrivals()
        self.changed.set()

    def _stand_ins_changed(self) -> None:
        self._update_arrivals()
        self.changed.set()

    def _ledger_changed(self) -> None:
        if self._arrivals or len(self._demand):
            self.changed.set()

    def _is_refused(self, _: PodRefused | MemberRefused) -> None:
        """Take in that kube-scheduler has said which nodes it would take for a pod."""
        if self._states:
            self.changed.set()

    def _update_arrivals(self) -> None:
        """Find out which new nodes stand-ins stand for; all others take pods."""
        for name, arrival in list(self._arrivals.items()):
            if self._stand_ins.find(arrival.stand_in) is None or self._templates.is_used(name):
                self._passes(name)
        taken = {each.stand_in for each in self._arrivals.values()}
        for template in self._stand_ins.templates():
            free = [each for each in self._stand_ins.staying(template) if each.pod.name not in taken]
            if free:
                new = (node for node in self._templates.nodes() if self._is_new(node, template, free[0].created))
                for node, stand_in in zip(sorted(new, key=lambda node: node.order), free, strict=False):
                    self._arrivals[node.name] = _Arrival(stand_in.pod.name)
                    self._ledger.arriving.note(node.name, True)

    def _is_new(self, node: SeenNode, template: str, since: str) -> bool:
        if node.template != template or node.created < since:
            return False
        return (
            node.name not in self._arrivals and node.name not in self._passed and not self._templates.is_used(node.name)
        )

    def _passes(self, node_name: str) -> None:
        """Let a node take pods."""
        self._arrivals.pop(node_name, None)
        self._passed.add(node_name)
        self._ledger.arriving.note(node_name, False)

    # Deciding.

    async def run(self, may_decide: Callable[[], bool]) -> None:
        """Decide whenever there may be something to decide, until cancelled. In a cluster at rest nothing runs."""
        took_s = 0.0
        while True:
            await self.changed.wait()
            await asyncio.sleep(max(SETTLE_S, REST_TO_WORK * took_s))
            begin_s = self._clock.work_s()
            self.changed.clear()
            if may_decide():
                await self.decide()
            took_s = self._clock.work_s() - begin_s

    async def decide(self) -> None:
        """Look once at all that waits, and have as many stand-ins as nodes are wanted."""
        self._let_nodes_in()
        if any(each.complete_s is not None for each in self._arrivals.values()):
            return  # a node that is complete is about to take pods: until then it would be asked for once more
        self._give_up()
        now_s = self._clock.now_s()
        templates = [
            (nodes, template)
            for nodes, template in self._templates.known()
            if self._states[nodes.name].paused_until_s <= now_s
        ]
        seeking = await self._demand.seeking([nodes for nodes, _ in templates])
        if seeking.next_s is not None:
            self._look_in(seeking.next_s)
        found = await self._search([template for _, template in templates], seeking.seekers)
        if found is not None:
            self._take(templates, found, seeking)

    def _let_nodes_in(self) -> None:
        """Have the stand-ins of complete nodes deleted; the nodes take pods when that was answered."""
        now_s = self._clock.now_s()
        for name, arrival in list(self._arrivals.items()):
            node = self._templates.find(name)
            if node is None:
                self._passes(name)
            elif arrival.complete_s is None and self._is_ready(node):
                arrival.complete_s = now_s
                self._states[node.template].backoff.reset()
                self._look_in(COMPLETE_S)
            if arrival.complete_s is None:
                continue
            if self._offers_all(name) or now_s >= arrival.complete_s + COMPLETE_S:
                self._stand_ins.remove(arrival.stand_in)
            if now_s >= arrival.complete_s + 2 * COMPLETE_S:
                logger.warning("node %s takes pods, though its stand-in %s is not deleted yet", name, arrival.stand_in)
                self._passes(name)

    def _is_ready(self, node: SeenNode) -> bool:
        return self._ledger.offer(node.name) is not None and self._is_complete(node.name)

    def _offers_all(self, node_name: str) -> bool:
        """Return whether a node serves what its template does."""
        node, offer = self._templates.find(node_name), self._ledger.offer(node_name)
        if node is None or offer is None:
            return False
        of_template = (each for _, each in self._templates.known() if each.name == node.template)
        return all(offer.resources >= each.offer.resources for each in of_template)

    def _give_up(self) -> None:
        """Have templates pause whose nodes do not come, and their stand-ins deleted."""
        now_s, patience_s = self._clock.now_s(), self._settings.growth_patience_s
        taken = {each.stand_in for each in self._arrivals.values()}
        known = {each.pod.name: each for each in self._stand_ins.known()}
        self._asked_s = {name: self._asked_s.get(name, now_s) for name in known}
        for name, state in self._states.items():
            waiting = [each.pod.name for each in self._stand_ins.staying(name) if each.pod.name not in taken]
            late = [each for each in waiting if now_s >= self._asked_s[each] + patience_s]
            if waiting and not late:
                self._look_in(min(self._asked_s[each] for each in waiting) + patience_s - now_s)
            if not late:
                continue
            pause_s = state.backoff.next_s()
            state.paused_until_s = now_s + pause_s
            self._look_in(pause_s)
            text = f"{len(late)} nodes of template {name} were asked for, and did not come within {patience_s:g} s"
            logger.warning("%s; the next try is in %g s", text, pause_s)
            self._tell(state.wanted, f"{text}: see the autoscaler's log; the next try is in {pause_s:g} s")
            for each in late:
                self._stand_ins.remove(each)

    def _tell(self, wanted: NodesWanted | None, sentence: str) -> None:
        pods = (self._demand.pod_of(each) for each in (wanted.served if wanted else ()))
        pod = next((pod for pod in pods if pod is not None), None)
        if pod is not None:
            self._event_recorder.post_pod_event(pod, True, EventReason.NODES_NOT_COMING, sentence)

    async def _search(self, templates: Sequence[NodeTemplate], waiting: Sequence[Seekers]) -> Growth | None:
        """Return what is wanted, None if that could not be found out.

        While it is looked for, the ledger changes. What was found then is of no one moment, so it is looked for again;
        where something changes all the time, the least of what was found counts.
        """
        found: list[Growth] = []
        while len(found) < STALE_TRIES:
            growth = await self._once(templates, waiting)
            if growth.stopped:
                logger.warning("how many nodes are needed for %d pods and gangs takes too long to find", len(waiting))
                return None
            found.append(growth)
            if growth.is_current:
                return growth
        return min(found, key=lambda each: sum(each.nodes.values()))

    async def _once(self, templates: Sequence[NodeTemplate], waiting: Sequence[Seekers]) -> Growth:
        steps = find_growth(self._ledger, self._chooser, templates, waiting)
        since_s = self._clock.work_s()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Growth = end.value
                return found
            worked_s = self._clock.work_s() - since_s
            if worked_s > TURN_S:
                await asyncio.sleep(REST_TO_WORK * worked_s)
                since_s = self._clock.work_s()

    def _take(self, templates: Sequence[tuple[NewNodes, NodeTemplate]], found: Growth, seeking: Seeking) -> None:
        """Have what was found."""
        self.unhelped = found.unhelped
        self._demand.pods_of_seekers = seeking.pods
        now = rfc3339(self._clock.wall())
        for name, state in self._states.items():
            count, before = found.nodes.get(name, 0), state.wanted
            if count and (before is None or before.count != count):
                logger.info("%d more nodes of template %s are wanted", count, name)
            served = found.served.get(name, ())
            state.wanted = NodesWanted(name, count, before.since if before else now, served) if count else None
        known = {nodes.name: (nodes, template) for nodes, template in templates}
        for name in {*known, *self._stand_ins.templates()}:
            wanted = found.nodes.get(name, 0) if self._settings.growth == "stand-ins" else 0
            more = wanted - self._stand_ins.count(name)
            if more < 0:
                self._stand_ins.remove_some(name, -more)
            for _ in range(more):
                self._stand_ins.add(*known[name])

    def _look_in(self, wait_s: float) -> None:
        self._tasks.after(max(wait_s, 0.0), self.changed.set)
