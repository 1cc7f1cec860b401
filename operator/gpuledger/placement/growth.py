"""How many more nodes let the pods run that wait: of which templates, for whom, and why a template is of no help.

The pods are placed on a `Sketch` of the ledger that has empty nodes more, as the operator places them once such nodes
are there: in their order, gangs whole, by the policy and within the quotas. Nothing of the ledger changes.

1. *Grow.* The first that finds no room gets nodes, one at a time: of the template with which most of its pods fit, then
   of the one that takes most of all pods that are left, then of the smaller one, then of the first. What is left on
   these nodes goes to the others in their order, before the next that finds no room gets nodes.
2. *Settle.* All are placed anew with all of these nodes, as a policy can use them otherwise if they are there from the
   beginning. Who finds no room then gets nodes as before; if that is no help, all begins again without nodes for it.
3. *Fewer.* A node of each template is taken away, as long as the same pods are placed without it.

So the answer holds for what the policy itself does: with these nodes the same pods are placed, with one node less of
any template they are not. For one template, that is the number that is needed. Of several it may be more than the
least: in 1 of 100 random cases with two templates and up to three nodes it was, by one node, rarely two.

It costs one placement of all that wait for each try of the last two steps, and for each node a look for those that are
left. Measured for 500 pods of 40 shapes and 10 gangs of 8, on 200 full nodes of 8 cards: 1.7 s of one core for one
template (`binpack`, 89 nodes) and 3.9 s for three; by `fragmentation` 3.3 and 4.9 s; on 1,000 nodes 1.7 and 3.2 s.
That is 6 to 16 slices of 0.3 s. Half of the steps take less than 0.6 ms, the longest 15 ms, or up to 75 where Python
collects garbage meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import NAMESPACE_DNS, uuid5

from gpuledger.formats.kubernetes.constraints import refused_by_host
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.ledger.quotas import asked_of
from gpuledger.model.card import Card, topology_of
from gpuledger.model.errors import Refusal, WorkLimitExceeded
from gpuledger.model.gang import QuotaLimit
from gpuledger.model.node import NodeOffer
from gpuledger.model.request import HostAmounts, PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.explain import over_quota
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.group import Asking, GroupPlanner, Plan, WithHost, both
from gpuledger.placement.policy import Preference, StepBudget
from gpuledger.placement.sketch import Sketch

Why = tuple[str, str]
"""A code and a sentence: a `Reason` with the text of its refusal, or one of kube-scheduler's rules."""

AT_MOST = "at-most"
"""The code where the limit of a template is in the way."""

NOT_KNOWN = "not-known"
"""The code where selectors of ResourceClaims can't be evaluated now."""

MOST_LOOKS = 100_000
"""Looks for the place of one pod in one search, some 0.1 ms each."""

STEPS_AT_ONCE = 512
"""Of one look before others have their turn, some 10 microseconds each."""


def copied(card: Card, node_name: str) -> Card:
    """Return a card like this one on another node, in working order and with a UUID of its own."""

    def new(uuid: str) -> str:
        return f"GPU-{uuid5(NAMESPACE_DNS, f'{uuid}.{node_name}')}"

    links = {new(peer): score for peer, score in card.links.items()}
    return replace(card, uuid=new(card.uuid), node_name=node_name, links=links, healthy=True, fault="")


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """Nodes that are alike, of which there can be more."""

    name: str
    cards: tuple[Card, ...]
    """By index; those of new nodes are copies."""
    offer: NodeOffer
    """What the device plugin of such a node serves."""
    host: HostAmounts | None = None
    """CPU and memory for pods, and cards that only their own plugin counts; None if they are not known."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the zones that new nodes are in, as far as they are known."""
    at_most: int = 1
    """How many more there can be."""
    prefix: str = ""
    """Of the names of new nodes, before their number; empty: the template's, with a slash, which no node's name has."""

    def node(self, number: int) -> NodeRoom:
        """Return an empty node; the first has number 1."""
        name = f"{self.prefix or f'{self.name}/'}{number}"
        cards = tuple(copied(card, name) for card in self.cards)
        rooms = tuple(Room(card, card.capacity, idle=True, shut=False) for card in cards)
        counted = self.host.cards if self.host and self.host.cards and not cards else None
        topology = topology_of(cards) if len(cards) > 1 else None
        return NodeRoom(name, self.offer, cards, rooms, host=self.host, counted=counted, topology=topology)


@dataclass(frozen=True, slots=True)
class Seeker:
    """A pod that waits."""

    asking: Asking
    """Its key, its request, and the nodes of the ledger to which it can go. Of a pod by itself, no others count."""
    barred: Mapping[str, Why] = field(default_factory=dict)
    """Template of which it takes no nodes, whatever their cards -> why: its rules for nodes, or a claim elsewhere."""


@dataclass(frozen=True, slots=True)
class Seekers:
    """Pods that are placed together or not at all: one by itself, or as many as a gang lacks."""

    name: str
    """No two have the same."""
    pods: tuple[Seeker, ...]
    is_gang: bool = False


@dataclass(frozen=True, slots=True)
class Growth:
    """The answer. Names are those of templates and of `Seekers`, in the order in which they were given."""

    nodes: Mapping[str, int]
    """Template -> how many more of its nodes are needed; templates of which none is are left out."""
    helped: tuple[str, ...]
    """Who finds room with these nodes only: on one of them, or on an old one, as others go to them."""
    served: Mapping[str, tuple[str, ...]]
    """Template of these -> who of `helped` has a place on one of its nodes."""
    fitting: tuple[str, ...]
    """Who finds room without any more nodes."""
    unhelped: Mapping[str, Mapping[str, Why]]
    """Who finds none with them -> template -> why it is of no help."""
    undecided: tuple[str, ...] = ()
    """Who was not looked at to the end, as the search has stopped early; then `nodes` are those that were found to be
    needed by then, and may be more or fewer than are."""
    stopped: bool = False
    """Whether it has stopped early, as it has cost what it may."""
    is_current: bool = True
    """Whether the ledger is as it was at the beginning. Else the answer is of no one moment."""


def find_growth(
    ledger: Ledger,
    chooser: Chooser,
    templates: Sequence[NodeTemplate],
    waiting: Sequence[Seekers],
    most_looks: int = MOST_LOOKS,
) -> Generator[None, None, Growth]:
    """Return how many more nodes are needed, for those that wait in the order in which they get room.

    Others can have their turn between two steps, which take some milliseconds. The ledger can change meanwhile.
    """
    search = _Search(ledger, chooser, templates, waiting, StepBudget(most_looks))
    begun = ledger.changes
    try:
        yield from search.run()
        stopped = False
    except _NoLooksLeft:
        stopped = True
    return search.answer(stopped, ledger.changes == begun)


class _NoLooksLeft(Exception):  # noqa: N818 - reads as what it is
    """The search has cost what it may."""


class _Allowed(Collection[str]):
    """Names of nodes to which a pod can go, with those of the nodes more."""

    def __init__(self, names: Collection[str], more: Mapping[str, str], barred: Collection[str]) -> None:
        self._names = names
        self._more = more  # name of a node -> its template
        self._barred = barred

    def __contains__(self, name: object) -> bool:
        template = self._more.get(name)  # type: ignore[call-overload]  # anything can be looked for
        return name in self._names if template is None else template not in self._barred

    def __iter__(self) -> Iterator[str]:
        yield from self._names
        yield from (name for name, template in self._more.items() if template not in self._barred)

    def __len__(self) -> int:
        return len(self._names) + sum(template not in self._barred for template in self._more.values())


class _Stage:
    """The ledger with some nodes more, and who of those that wait has a place there."""

    def __init__(self, search: _Search, counts: Mapping[str, int]) -> None:
        self.counts: Counter[str] = Counter()
        """Template -> number of its nodes."""
        self.placed: dict[str, Seekers] = {}
        self.exceeded: dict[str, QuotaLimit] = {}
        """Who has found no room -> the limit of the namespace that was in the way."""
        self.unknown: dict[str, str] = {}
        """Who has found no room -> why selectors could not be evaluated."""
        self._search = search
        self._sketch = Sketch(search.ledger)
        self._seen = search.ledger.changes
        self._template_of: dict[str, str] = {}  # name of a node more -> its template
        self._allowed: dict[tuple[int, frozenset[str]], _Allowed] = {}
        self._asking = {group.name: self._asked(group) for group in search.waiting}
        self._failed: dict[_Kind, int] = {}  # kind of seekers -> how many places they lack
        self._failed_before: list[dict[_Kind, int]] = []  # the same before each node that was added
        for template in search.templates.values():
            for _ in range(counts.get(template.name, 0)):
                self.add(template)

    def _asked(self, group: Seekers) -> tuple[Asking, ...]:
        return tuple(replace(pod.asking, node_names=self._names_of(pod)) for pod in group.pods)

    def _names_of(self, pod: Seeker) -> Collection[str] | None:
        """Return the nodes for a pod: the same object for pods for which they are the same."""
        names, barred = pod.asking.node_names, frozenset(pod.barred)
        if names is None and not barred:
            return None
        key = (id(names), barred)
        if key not in self._allowed:
            every = self._search.known_nodes if names is None else names
            self._allowed[key] = _Allowed(every, self._template_of, barred)
        return self._allowed[key]

    # Nodes.

    def add(self, template: NodeTemplate) -> str:
        """Add a node; return its name."""
        self.counts[template.name] += 1
        node = self._search.node(template, self.counts[template.name])
        self._template_of[node.name] = template.name
        self._sketch.add_node(node, template.labels)
        self._failed_before.append(self._failed)
        self._failed = {}
        return node.name

    def drop(self, node_name: str) -> None:
        """Take the node away that was added last, on which nobody has a place."""
        self.counts[self._template_of.pop(node_name)] -= 1
        self._sketch.remove_node(node_name)
        self._failed = self._failed_before.pop()

    # Places.

    def fill(self) -> Generator[None, None, None]:
        """Place all who have no place, each in its turn."""
        for group in self._search.waiting:
            if group.name not in self.placed:
                yield from self.seat(group)

    def settle(self, wanted: Collection[str] = ()) -> Generator[None, None, bool]:
        """Do the same, and try gangs again after others have been placed, as the operator does.

        The policy then places their members elsewhere. Returns whether those `wanted` are all placed, and ends early if
        one is not.
        """
        before = -1
        while before < len(self.placed) < len(self._search.waiting):
            before = len(self.placed)
            for group in self._search.waiting:
                if group.name in self.placed:
                    continue
                lacking = yield from self.seat(group)
                if not lacking:
                    self._failed = {kind: number for kind, number in self._failed.items() if not kind.is_gang}
                elif group.name in wanted and not group.is_gang:
                    return False
        return self.placed.keys() >= {*wanted}

    def seat(self, group: Seekers, anew: bool = False) -> Generator[None, None, int]:
        """Place all of a group, or none; return how many places it lacks.

        Where others alike have found none, it is as many as these have lacked: they may be more by now, unless `anew`.
        """
        asking = self._asking[group.name]
        kind = _Kind(group.is_gang, tuple(map(_kind, asking)))
        if kind in self._failed and not anew:
            return self._failed[kind]
        lacking = yield from (self._seat_gang(group, asking) if group.is_gang else self._seat_one(group, asking[0]))
        self._catch_up()
        if not lacking:
            self.placed[group.name] = group
        elif group.name not in self.exceeded and group.name not in self.unknown:
            self._failed[kind] = lacking
        return lacking

    def stand(self, group: Seekers) -> None:
        """Take their places from a group, if it has any."""
        self.placed.pop(group.name, None)
        self._sketch.stand([each.key for each in self._asking[group.name] if each.key in self._sketch.places])

    def _seat_one(self, group: Seekers, pod: Asking) -> Generator[None, None, int]:
        for request in pod.request.variants:
            names = both(WithHost(self._sketch, request.host), pod.node_names)
            while True:
                yield
                self._catch_up()
                self._search.spend(1)
                placement = self._sketch.best(self._search.chooser, request, names, StepBudget(STEPS_AT_ONCE))
                if placement is not None or not self._sketch.is_unfinished(self._search.chooser, request):
                    break
            if placement is not None:
                exceeded = self._sketch.sit(pod.key, placement)
                if exceeded is None:
                    return 0
                self.exceeded[group.name] = exceeded
            self._note_unknown(group, request)
        return 1

    def _seat_gang(self, group: Seekers, asking: Sequence[Asking]) -> Generator[None, None, int]:
        planner = GroupPlanner(self._search.ledger, self._search.chooser, needs_host=True)
        plan: Plan | None = None
        while plan is None and group.name not in self.unknown:
            self._search.spend(len(asking))
            yield
            self._catch_up()
            try:
                plan = yield from planner.plan(asking, sketch=self._sketch)
            except WorkLimitExceeded:  # for now, or for a while
                self.stand(group)
                for each in asking:
                    self._note_unknown(group, each.request)
        if plan is not None and not plan.lacking:
            return 0
        self.stand(group)
        if plan is not None and plan.exceeded is not None:
            self.exceeded[group.name] = plan.exceeded
        return plan.lacking if plan is not None else len(asking)

    def _note_unknown(self, group: Seekers, request: PodRequest) -> None:
        if why := self._sketch.why_it_waits(self._search.chooser, request):
            self.unknown[group.name] = why

    def _catch_up(self) -> None:
        """Take in what has changed in the ledger: who has lost a place by that has none."""
        if self._seen == self._search.ledger.changes:
            return
        self._seen = self._search.ledger.changes
        self._sketch.refresh()
        self._failed = {}
        self._failed_before = [{} for _ in self._failed_before]
        for group in list(self.placed.values()):
            if any(each.key not in self._sketch.places for each in self._asking[group.name]):
                self.stand(group)

    # Growing.

    def help(self, group: Seekers) -> Generator[None, None, bool]:
        """Add the nodes with which a group finds room, and none if it finds none; return whether it does."""
        added: list[str] = []
        lacking = yield from self.seat(group, anew=True)
        while lacking:
            template = yield from self._choose(group, lacking)
            if template is not None:
                added.append(self.add(template))
                before, lacking = lacking, (yield from self.seat(group))
            if template is None or lacking >= before:
                for name in reversed(added):
                    self.drop(name)
                return False
        return True

    def _choose(self, group: Seekers, lacking: int) -> Generator[None, None, NodeTemplate | None]:
        """Return of which template a node helps a group most; None if of none."""
        options = [
            template
            for template in self._search.templates.values()
            if self.counts[template.name] < template.at_most
            and any(template.name not in pod.barred for pod in group.pods)
        ]
        if len(options) < 2:
            return options[0] if options else None
        ranked: list[tuple[tuple[int, ...], NodeTemplate]] = []
        for place, template in enumerate(options):
            name = self.add(template)
            left = yield from self.seat(group)
            if left < lacking:
                taken = (yield from self._more_placed()) if not left else 0
                memory_mib = sum(card.capacity.memory_mib for card in template.cards)
                ranked.append(((left, -taken, len(template.cards), memory_mib, place), template))
            self.stand(group)
            self.drop(name)
        return min(ranked, key=lambda each: each[0])[1] if ranked else None

    def _more_placed(self) -> Generator[None, None, int]:
        """Return for how many pods that have no place there is room."""
        before = set(self.placed)
        yield from self.fill()
        found = [group for name, group in self.placed.items() if name not in before]
        for group in found:
            self.stand(group)
        return sum(len(group.pods) for group in found)

    # What came of it.

    def outcome(self) -> _Outcome:
        """Return who has a place, and of which templates."""
        places = self._sketch.places
        nodes = {name: {places[each.key].node_name: None for each in self._asking[name]} for name in self.placed}
        templates = {
            name: frozenset(self._template_of[each] for each in found if each in self._template_of)
            for name, found in nodes.items()
        }
        return _Outcome(dict(+self.counts), templates)


@dataclass(frozen=True, slots=True)
class _Outcome:
    nodes: Mapping[str, int]
    placed: Mapping[str, frozenset[str]]
    """Who has a place -> the templates of the nodes more on which they are."""


class _Kind(NamedTuple):
    """What is equal for those that find room on the same nodes."""

    is_gang: bool
    pods: tuple[Hashable, ...]


def _kind(each: Asking) -> Hashable:
    """Return what is equal for pods that fit on the same nodes, and go to the same."""
    request = each.request
    return (
        request.shape,
        request.host,
        request.node_policy,
        request.card_policy,
        request.alternatives,
        id(each.node_names),
    )


class _Search:
    """One search, see `find_growth`."""

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        templates: Sequence[NodeTemplate],
        waiting: Sequence[Seekers],
        looks: StepBudget,
    ) -> None:
        self.ledger = ledger
        self.chooser = chooser
        self.templates = {template.name: template for template in templates}
        self.waiting = waiting
        self.known_nodes = frozenset(ledger.known_nodes())
        self._looks = looks
        self._nodes: dict[tuple[str, int], NodeRoom] = {}
        self._fitting: tuple[str, ...] = ()
        self._unhelped: dict[str, Mapping[str, Why]] = {}
        self._known = _Outcome({}, {})

    def node(self, template: NodeTemplate, number: int) -> NodeRoom:
        """Return a node of a template."""
        key = (template.name, number)
        if key not in self._nodes:
            self._nodes[key] = template.node(number)
        return self._nodes[key]

    def spend(self, looks: int) -> None:
        """Count looks for a pod's place. Raises _NoLooksLeft."""
        if not self._looks.spend(looks):
            raise _NoLooksLeft

    def run(self) -> Generator[None, None, None]:
        """Find out what `answer` returns. Raises _NoLooksLeft."""
        stage = _Stage(self, {})
        yield from stage.settle()
        self._fitting, self._known = tuple(stage.placed), stage.outcome()
        if len(stage.placed) == len(self.waiting) or not self.templates:
            self._no_help_for(stage, self.waiting)
            return
        while True:
            yield from self._grow(stage)
            without_help = len(self._unhelped)
            settled = yield from self._settle(stage.counts)
            if len(self._unhelped) == without_help:
                break
            stage = _Stage(self, {})  # the nodes that were added for those are of no use to others
            yield from stage.settle()
        self._known = settled.outcome()
        settled = yield from self._as_many_as_may_be(settled)
        self._known = (yield from self._fewer(settled)).outcome()

    def _grow(self, stage: _Stage) -> Generator[None, None, None]:
        """Add nodes for all who find no room, but for those whom none have helped before."""
        for group in self.waiting:
            if group.name in stage.placed or group.name in self._unhelped:
                continue
            if (yield from stage.help(group)):
                yield from stage.fill()
                self._known = stage.outcome()
            else:
                self._no_help_for(stage, [group])

    def _settle(self, counts: Mapping[str, int]) -> Generator[None, None, _Stage]:
        """Return where all have their places with all nodes from the beginning: those, and more where these lack."""
        while True:
            stage = _Stage(self, counts)
            yield from stage.settle()
            for group in self.waiting:
                is_left = group.name not in stage.placed and group.name not in self._unhelped
                if is_left and not (yield from stage.help(group)):
                    self._no_help_for(stage, [group])
            if +stage.counts == +Counter(counts):
                return stage
            counts = stage.counts

    def _as_many_as_may_be(self, stage: _Stage) -> Generator[None, None, _Stage]:
        """Return where more find room with all nodes that can be added, if there are any of those that have too few.

        A policy that spreads pods can leave room on as many nodes from the beginning, and none on one after the other.
        """
        more = Counter[str]()
        for group in self.waiting:
            for name, (code, _) in self._unhelped.get(group.name, {}).items():
                more[name] += len(group.pods) if code == AT_MOST else 0
        counts = {name: min(each.at_most, stage.counts[name] + more[name]) for name, each in self.templates.items()}
        if Counter(counts) == stage.counts:
            return stage
        trial = _Stage(self, counts)
        yield from trial.settle()
        return trial if trial.placed.keys() > stage.placed.keys() else stage

    def _fewer(self, stage: _Stage) -> Generator[None, None, _Stage]:
        """Return where the same find room, without the nodes that they do not need for it."""
        wanted, is_fewer = set(stage.placed), True
        while is_fewer:
            is_fewer = False
            for name in reversed(self.templates):
                while stage.counts[name]:
                    trial = _Stage(self, stage.counts - Counter({name: 1}))
                    if not (yield from trial.settle(wanted)):
                        break
                    stage, is_fewer = trial, len(self.templates) > 1
        return stage

    def answer(self, stopped: bool, is_current: bool) -> Growth:
        """Return what is known now."""
        nodes, placed, fitting = self._known.nodes, self._known.placed, {*self._fitting}
        helped = tuple(group.name for group in self.waiting if group.name in placed and group.name not in fitting)
        unhelped = {group.name: self._unhelped[group.name] for group in self._left() if group.name in self._unhelped}
        return Growth(
            nodes={name: nodes[name] for name in self.templates if nodes.get(name)},
            helped=helped,
            served={
                name: tuple(each for each in helped if name in placed[each])
                for name in self.templates
                if nodes.get(name)
            },
            fitting=self._fitting,
            unhelped=unhelped,
            undecided=tuple(group.name for group in self._left() if group.name not in unhelped),
            stopped=stopped,
            is_current=is_current,
        )

    def _left(self) -> Iterable[Seekers]:
        return (group for group in self.waiting if group.name not in self._known.placed)

    # Reasons.

    def _no_help_for(self, stage: _Stage, groups: Iterable[Seekers]) -> None:
        for group in groups:
            if group.name not in stage.placed:
                why = {name: self._why(stage, group, template) for name, template in self.templates.items()}
                self._unhelped[group.name] = why

    def _why(self, stage: _Stage, group: Seekers, template: NodeTemplate) -> Why:
        """Return why nodes of a template are of no help: what is true of an empty one comes first."""
        for pod in group.pods:
            if why := pod.barred.get(template.name) or self._refused(template, pod.asking.request):
                return why
        if group.name in stage.unknown:
            return NOT_KNOWN, stage.unknown[group.name]
        if limit := stage.exceeded.get(group.name):
            refusal = over_quota(limit, sum(asked_of(limit, pod.asking.request.shape) for pod in group.pods))
            return refusal.reason.value, refusal.text
        nodes = "one such node" if template.at_most == 1 else f"{template.at_most} such nodes"
        return AT_MOST, f"no more than {nodes} can be added"

    def _refused(self, template: NodeTemplate, request: PodRequest) -> Why | None:
        """Return why an empty node of a template takes no such pod, None if it does."""
        refusals: list[Why] = []
        for variant in request.variants:
            if why := refused_by_host(variant.host, template.host):
                refusals.append(why)
                continue
            found = choose_cards(variant.shape, self.node(template, 1), Preference.BINPACK)
            if not isinstance(found, Refusal):
                return None
            refusals.append((found.reason.value, found.text))
        return refusals[0]
