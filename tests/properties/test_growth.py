"""How many more nodes are needed, against placement in a ledger that really has them, and against all other numbers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from builders import OFFER, a_ledger, a_request, a_share, cards_of, mib, occupy, percent, stored, whole
from effort import times
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import FOREVER, Seat, Strength
from gpuledger.model.card import Card
from gpuledger.model.request import HostAmounts, PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import Asking, GroupPlanner, WithHost, both
from gpuledger.placement.growth import Growth, NodeTemplate, Seeker, Seekers, find_growth
from gpuledger.placement.policy import Policy, Preference
from gpuledger.placement.sketch import Sketch
from gpuledger.workflows.tasks import run_to_end

BARRED = ("taint", "the pod does not tolerate the taint x")
HOST = HostAmounts(4_000, 8_000)


@dataclass(frozen=True)
class World:
    """A cluster, and who waits there."""

    cards: tuple[tuple[Card, int], ...]
    """Each with what is used of it, in MiB."""
    templates: tuple[NodeTemplate, ...]
    waiting: tuple[Seekers, ...]
    policy: Policy

    def ledger(self) -> Ledger:
        ledger = a_ledger(*(card for card, _ in self.cards))
        for card, used in self.cards:
            if used:
                occupy(ledger, f"on {card.uuid}", a_share(card, used))
        return ledger

    def growth(self, ledger: Ledger | None = None) -> Growth:
        ledger = ledger or self.ledger()
        return run_to_end(find_growth(ledger, Chooser(ledger, self.policy), self.templates, self.waiting))

    def placed(self, counts: Mapping[str, int]) -> set[str]:
        """Return who finds room in a ledger that has these nodes: each in its turn, and again once others have some."""
        ledger, more = self.ledger(), dict[str, str]()
        for template in self.templates:
            for number in range(1, counts.get(template.name, 0) + 1):
                node = template.node(number)
                more[node.name] = template.name
                for card in node.cards:
                    ledger.load(stored(card))
                ledger.set_offer(node.name, OFFER)
                ledger.hosts.set_capacity(node.name, template.host)
        chooser = Chooser(ledger, self.policy)
        placed, before = set[str](), -1
        while before < len(placed):
            before = len(placed)
            left = [each for each in self.waiting if each.name not in placed]
            placed |= {each.name for each in left if _is_placed(ledger, chooser, each, more)}
        return placed


def _is_placed(ledger: Ledger, chooser: Chooser, group: Seekers, more: Mapping[str, str]) -> bool:
    old = [name for name in ledger.node_names() if name not in more]
    asking = [replace(each.asking, node_names=_names(each, old, more)) for each in group.pods]
    if group.is_gang:
        plan = run_to_end(GroupPlanner(ledger, chooser, needs_host=True).plan(asking))
        if not plan.lacking:
            plan.sketch.commit(FOREVER, Strength.BINDING)
        return not plan.lacking
    [pod] = asking
    names = both(WithHost(Sketch(ledger), pod.request.host), pod.node_names)
    placement = chooser.best(pod.request, names)
    if placement is not None:
        ledger.seats.take(Seat(pod.key, placement, FOREVER))
    return placement is not None


def _names(pod: Seeker, old: Sequence[str], more: Mapping[str, str]) -> Collection[str] | None:
    if not pod.barred:
        return None
    return frozenset([*old, *(name for name, template in more.items() if template not in pod.barred)])


requests = st.one_of(
    st.integers(1, 13).map(lambda size: a_request(mib(size))),
    st.integers(1, 3).map(lambda cards: a_request(whole(cards))),
    st.sampled_from([a_request(mib(4, cards=2)), a_request(mib(3), mib(5)), a_request(percent(50)), a_request(mib(2))]),
)


@st.composite
def seekers(draw: st.DrawFn, name: str, templates: Sequence[str]) -> Seekers:
    """Draw a pod, or a gang of two or three that are mostly alike."""
    members = draw(st.sampled_from([1, 1, 1, 2, 3]))
    is_gang = members > 1 or draw(st.sampled_from([False] * 5 + [True]))
    first = draw(requests)
    pods = []
    for number in range(members):
        request: PodRequest = first if draw(st.sampled_from([True, True, False])) else draw(requests)
        request = replace(request, host=HostAmounts(draw(st.sampled_from([0, 0, 0, 1_500, 5_000])), 0))
        barred = {each: BARRED for each in templates if draw(st.integers(0, 9)) == 0}
        pods.append(Seeker(Asking(f"{name}-{number}", request), barred))
    return Seekers(name, tuple(pods), is_gang)


@st.composite
def worlds(draw: st.DrawFn, templates: int, most: int = 8, pods: int = 6) -> World:
    """Draw a cluster of up to two nodes that are mostly full."""
    cards = [
        (card, draw(st.integers(0, size)))
        for number in range(draw(st.integers(0, 2)))
        for size in [draw(st.sampled_from([8, 12]))]
        for card in cards_of(f"n{number}", draw(st.integers(1, 2)), memory_mib=size, number=4)
    ]
    names = [f"t{number}" for number in range(templates)]
    kinds = tuple(
        NodeTemplate(
            name,
            tuple(cards_of(name, draw(st.integers(1, 3)), memory_mib=draw(st.sampled_from([6, 8, 12])), number=3)),
            OFFER,
            draw(st.sampled_from([None, HOST])),
            at_most=draw(st.integers(0, most)) if draw(st.integers(0, 4)) == 0 else most,
        )
        for name in names
    )
    waiting = tuple(draw(seekers(f"w{number}", names)) for number in range(draw(st.integers(0, pods))))
    preferences = st.sampled_from([Preference.BINPACK, Preference.SPREAD, Preference.TOPOLOGY])
    return World(tuple(cards), kinds, waiting, Policy(draw(preferences), draw(preferences)))


def less_one(counts: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the same with a node less of each template."""
    return [{**counts, name: number - 1} for name, number in counts.items()]


def placed_by(growth: Growth, waiting: Collection[Seekers]) -> set[str]:
    return {each.name for each in waiting} - growth.unhelped.keys()


@given(worlds(templates=1))
@settings(max_examples=times(150, 2_000, check=50), deadline=None)
def test_with_so_many_nodes_all_who_can_be_helped_are_placed_and_with_one_less_not(world: World) -> None:
    found = world.growth()
    helped = placed_by(found, world.waiting)
    event(f"{sum(found.nodes.values())} nodes, {len(found.unhelped)} without help")
    assert world.placed(found.nodes) == helped
    assert set(found.fitting) == world.placed({})
    for fewer in less_one(found.nodes):
        assert not helped <= world.placed(fewer)
    assert not found.undecided
    assert not found.stopped
    assert found.is_current


@given(worlds(templates=1))
@settings(max_examples=times(100, 2_000, check=30), deadline=None)
def test_never_more_than_may_be_added_and_all_of_them_help_nobody_else(world: World) -> None:
    """As in the operator, where pods that fit do not wait: else they can leave old nodes to others for new ones.

    So can a gang that is spread: the one of its pods that an old node could take goes to another new one.
    """
    found = world.growth()
    assume(not found.fitting and world.policy.nodes is not Preference.SPREAD)
    [template] = world.templates
    assert found.nodes.get(template.name, 0) <= template.at_most
    assert not placed_by(found, world.waiting) < world.placed({template.name: template.at_most})


@given(worlds(templates=2))
@settings(max_examples=times(100, 2_000, check=30), deadline=None)
def test_of_several_templates_none_of_the_nodes_can_be_left_out(world: World) -> None:
    found = world.growth()
    helped = placed_by(found, world.waiting)
    assert world.placed(found.nodes) == helped
    for fewer in less_one(found.nodes):
        assert not helped <= world.placed(fewer)
    for template in world.templates:
        assert found.nodes.get(template.name, 0) <= template.at_most
    assert {*found.helped} == helped - {*found.fitting}
    assert {name for names in found.served.values() for name in names} <= {*found.helped}


GREEDY_EXCEEDS = 2
"""By so many nodes, of the three that are tried, has the answer for two templates exceeded the least: the node that
takes most of what is left now can be another one than those that take all of it together. In 1 of 100 such clusters it
is one node more, in 1 of 500 two. Where a new node draws pods to it that fit on old ones, it can be more still."""


@given(worlds(templates=2, most=3, pods=4))
@settings(max_examples=times(100, 2_000, check=30), deadline=None, derandomize=True)  # no proof: seen of these only
def test_of_two_templates_hardly_more_nodes_are_wanted_than_the_least_and_never_fewer(world: World) -> None:
    found = world.growth()
    helped = placed_by(found, world.waiting)
    one, two = world.templates
    numbers = [each for each in product(range(one.at_most + 1), range(two.at_most + 1)) if sum(each) <= 3]
    enough = [sum(each) for each in numbers if helped <= world.placed({"t0": each[0], "t1": each[1]})]
    wanted = sum(found.nodes.values())
    assert enough or wanted > 3
    event(f"{wanted - min(enough, default=4)} more than the least")
    assert min(enough, default=4) <= wanted
    if enough and not found.fitting and world.policy.nodes is not Preference.SPREAD:
        assert wanted <= min(enough) + GREEDY_EXCEEDS


@given(worlds(templates=2))
@settings(max_examples=times(60, 1_000, check=20), deadline=None)
def test_nothing_is_wanted_where_nobody_is_helped_and_the_ledger_is_as_before(world: World) -> None:
    ledger = world.ledger()
    rooms = {name: ledger.node_room(name) for name in ledger.node_names()}
    before = ledger.changes
    found = world.growth(ledger)
    if placed_by(found, world.waiting) == {*found.fitting}:
        assert not found.nodes, "a pod or a gang that can't be helped wants no node"
    assert ledger.changes == before
    assert {name: ledger.node_room(name) for name in ledger.node_names()} == rooms
    assert {*ledger.known_nodes()} == rooms.keys()
    assert all(ledger.seats.of(each.asking.key) is None for group in world.waiting for each in group.pods)


@given(worlds(templates=2), st.integers(0, 60))
@settings(max_examples=times(60, 1_000, check=20), deadline=None)
def test_a_search_that_stops_early_says_so_and_of_whom_it_knows_nothing(world: World, looks: int) -> None:
    ledger = world.ledger()
    search = find_growth(ledger, Chooser(ledger, world.policy), world.templates, world.waiting, most_looks=looks)
    found = run_to_end(search)
    assert found.stopped or (found.nodes, found.unhelped) == ((full := world.growth()).nodes, full.unhelped)
    assert found.stopped or not found.undecided
    for template in world.templates:
        assert found.nodes.get(template.name, 0) <= template.at_most


@given(worlds(templates=2), st.integers(1, 40), st.integers(0, 7))
@settings(max_examples=times(60, 1_000, check=20), deadline=None)
def test_the_ledger_can_change_meanwhile(world: World, step: int, size: int) -> None:
    ledger = world.ledger()
    search = find_growth(ledger, Chooser(ledger, world.policy), world.templates, world.waiting)
    changed = False
    found: Growth
    for number in count():
        try:
            next(search)
        except StopIteration as end:
            found = end.value
            break
        if number == step:
            other = cards_of("other", 1, memory_mib=size + 1)[0]
            ledger.load(stored(other))
            ledger.set_offer("other", OFFER)
            occupy(ledger, "new", a_share(other, size))
            changed = True
    assert found.is_current is not changed
    assert not found.stopped
    for template in world.templates:
        assert found.nodes.get(template.name, 0) <= template.at_most
