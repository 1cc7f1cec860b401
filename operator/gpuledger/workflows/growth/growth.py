"""Asks for nodes when pods wait for cards, as many as `placement/growth.py` finds, and gives up what is not needed.

Nothing that is decided here is kept: the next look finds it again from pods, nodes and stand-ins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attrs import define

from gpuledger.configuration.node_templates import NewNodes
from gpuledger.model.clock import Backoff, Listeners, rfc3339
from gpuledger.model.errors import EventReason
from gpuledger.model.json_object import Json
from gpuledger.placement.growth import Growth, NodeTemplate, Seekers, Why, find_growth
from gpuledger.reports.explanation import NewNodes as AnsweredNodes
from gpuledger.workflows.context import Component, Context
from gpuledger.workflows.events import MemberRefused, PodRefused
from gpuledger.workflows.growth.arrivals import Arrivals
from gpuledger.workflows.growth.demand import Demand, Seeking, WhoWaits
from gpuledger.workflows.growth.stand_ins import StandIns
from gpuledger.workflows.growth.templates import Templates
from gpuledger.workflows.inventory import InventoryKeeper
from gpuledger.workflows.preemption.preempt import Preemption
from gpuledger.workflows.queues.card_check import Queues
from gpuledger.workflows.tasks import TURN_S

logger = logging.getLogger(__name__)

SETTLE_S = 0.2
"""Before a look: what changes until then is one look."""

REST_TO_WORK = 3.0
"""How long the search rests, by how long it has worked: most of the time is for pods that find cards."""

STALE_TRIES = 4
"""Searches in a row during which the ledger has changed; after so many, the least that they have found counts."""

LONGEST_PAUSE_S = 3_600.0
"""Of a template whose nodes do not come."""


NOTHING, NOBODY = Growth({}, (), {}, (), {}), Seeking((), {}, None)


@dataclass(frozen=True, slots=True)
class NodesWanted:
    """How many nodes of a template are wanted now."""

    template: str
    count: int
    since: str
    """Since when there is a number that is not 0, RFC 3339."""
    served: tuple[str, ...]
    """For whom: UIDs of pods, `gang NAMESPACE/NAME`, `workload NAMESPACE/NAME`, `reservation NAMESPACE/NAME NUMBER`.
    They may be old."""

    def json(self) -> Json:
        """Return it as it goes over the wire, without for whom."""
        return {"template": self.template, "wanted": self.count, "since": self.since}


@dataclass(slots=True)
class _State:
    """Of a template."""

    backoff: Backoff
    wanted: NodesWanted | None = None
    paused_until_s: float = 0.0


@define(eq=False, slots=False)
class NodeGrowth(Component):
    """The part that decides."""

    _demand: Demand
    _templates: Templates
    _stand_ins: StandIns
    _arrivals: Arrivals

    def __attrs_post_init__(self) -> None:
        settings = self._settings
        self._states = {
            each.name: _State(Backoff(settings.growth_patience_s, max(LONGEST_PAUSE_S, settings.growth_patience_s)))
            for each in self._templates.settings
        }
        self._asked_s: dict[str, float] = {}  # name of a stand-in -> when it was seen first
        self.unhelped: Mapping[str, Mapping[str, Why]] = {}
        """Who waits, as in `NodesWanted.served`, and finds no room with any nodes -> template -> why."""
        self.on_less_help = Listeners[[]]()
        """Called when it turns out that nodes do not help somebody, or do not come."""
        self.changed = asyncio.Event()
        """Set when there may be something to decide."""
        self._stand_ins.on_change.append(self.changed.set)
        self._arrivals.on_one.append(lambda template: self._states[template].backoff.reset())
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

    def time_left_s(self, pod_uid: str) -> float:
        """Return for how long a pod still waits for nodes before others have to leave for it."""
        wait_s = self._settings.preemption_waits_for_nodes_s
        if not wait_s or not self._states or self._have_given_up():
            return 0.0
        seekers = (pod_uid, self._demand.gang_of(pod_uid))
        if any(self.unhelped.get(each, {}).keys() >= self._states.keys() for each in seekers):
            return 0.0
        return max(self._demand.waits_since_s(pod_uid) + wait_s - self._clock.now_s(), 0.0)

    def _have_given_up(self) -> bool:
        now_s = self._clock.now_s()
        return all(state.paused_until_s > now_s for state in self._states.values())

    def said_of(self, seekers: Sequence[str]) -> list[AnsweredNodes]:
        """Return what the last look has found for somebody who waits, named as in `NodesWanted.served`."""
        wanted = [each for each in self.wanted() if not {*seekers}.isdisjoint(each.served)]
        reasons = {template: text for name in seekers for template, (_, text) in self.unhelped.get(name, {}).items()}
        return [
            *(AnsweredNodes(each.template, each.count, each.since, "") for each in wanted),
            *(AnsweredNodes(template, 0, None, text) for template, text in reasons.items()),
        ]

    # What the watches show.

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
        self.changed.set()

    def _ledger_changed(self) -> None:
        if len(self._arrivals) or len(self._demand):
            self.changed.set()

    def _is_refused(self, _: PodRefused | MemberRefused) -> None:
        """Take in that kube-scheduler has said which nodes it would take for a pod."""
        if self._states:
            self.changed.set()

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
        again_s = self._arrivals.let_in()
        if again_s is not None:
            self._look_in(again_s)
            return  # a node that is complete is about to take pods: until then it would be asked for once more
        self._give_up()
        now_s = self._clock.now_s()
        templates = [
            (nodes, template)
            for nodes, template in self._templates.known()
            if self._states[nodes.name].paused_until_s <= now_s
        ]
        if not templates:
            self._take((), NOTHING, NOBODY)
            return
        seeking = await self._demand.seeking([nodes for nodes, _ in templates])
        if seeking.next_s is not None:
            self._look_in(seeking.next_s)
        found = await self._search([template for _, template in templates], seeking.seekers)
        if found is not None:
            self._take(templates, found, seeking)

    def _give_up(self) -> None:
        """Have templates pause whose nodes do not come, and their stand-ins deleted."""
        now_s, patience_s = self._clock.now_s(), self._settings.growth_patience_s
        taken = self._arrivals.stand_ins()
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
            text = f"nodes of template {name} did not come within {patience_s:g} s, of which {len(late)} were asked for"
            logger.warning("%s; the next try is in %g s", text, pause_s)
            self._tell(state.wanted, f"{text}: see the autoscaler's log; the next try is in {pause_s:g} s")
            for each in late:
                self._stand_ins.remove(each)
            self.on_less_help()

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
        found: list[Growth] = [] if waiting else [NOTHING]
        while waiting and len(found) < STALE_TRIES:
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
        before, self.unhelped = self.unhelped, found.unhelped
        if not self.unhelped.keys() <= before.keys():
            self.on_less_help()
        self._demand.pods_of_seekers = seeking.pods
        now = rfc3339(self._clock.wall())
        for name, state in self._states.items():
            count, was = found.nodes.get(name, 0), state.wanted
            if count and (was is None or was.count != count):
                logger.info("nodes of template %s that are wanted now: %d", name, count)
            served = found.served.get(name, ())
            state.wanted = NodesWanted(name, count, was.since if was else now, served) if count else None
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


class GrowthParts:
    """The parts that ask for nodes. Where that is not turned on, they know nothing and cost next to nothing."""

    def __init__(
        self,
        context: Context,
        who: WhoWaits,
        queues: Queues,
        inventory: InventoryKeeper,
        is_active: Callable[[], bool],
        preemption: Preemption,
    ) -> None:
        """Let pods wait for nodes before others leave for them, where the settings say so."""
        templates, self.stand_ins = Templates(context, inventory), StandIns(context, is_active)
        arrivals = Arrivals(context, templates, self.stand_ins)
        demand = Demand(context, who, queues.check, queues.reader, queues.nodes, templates)
        self.nodes = NodeGrowth(context, demand, templates, self.stand_ins, arrivals)
        self.followers = (demand, templates, self.stand_ins, arrivals, self.nodes)
        """In the order in which they are told, before what opens nodes to pods."""
        who.reservations.book.on_change.append(lambda _: self.nodes.changed.set())
        preemption.waits_for_nodes_s = self.nodes.time_left_s
        self.nodes.on_less_help.append(preemption.wanted.set)
