"""The ledger against a naive model: whatever happens in whatever order, no share is lost and no card over-allocated.

The model keeps plain lists and works everything out anew each time it is asked. Its view of the API server is what the
server told last, so a commit is a card that comes with one more holder, a release one that comes with one less.
"""

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from builders import OFFER, a_card, a_holder, a_share
from gpuledger.ledger.book import PINNED, Ledger
from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.model.amounts import Amounts
from gpuledger.model.card import Card
from gpuledger.model.errors import DoesNotFit
from gpuledger.model.share import Holder, Placement, Share
from gpuledger.model.stored_card import StoredCard

NODES = ["node-a", "node-b", "node-c"]
CARDS = [("GPU-0", 0), ("GPU-1", 1), ("GPU-2", 0), ("GPU-3", 1), ("GPU-4", 0)]
PODS = ["p0", "p1", "p2", "p3", "p4"]

uuids = st.sampled_from([uuid for uuid, _ in CARDS])
pods = st.sampled_from(PODS)
capacities = st.sampled_from([Amounts(8, 100, 4), Amounts(8, 100, 1), Amounts(3, 50, 2), Amounts(1, 0, 1)])
wants = st.sampled_from([(1, 0), (2, 30), (4, 50), (8, 100), (3, 51)])


@dataclass
class Line:
    """What is known of a card."""

    card: Card
    version: int
    holders: list[tuple[str, Share]] = field(default_factory=list)
    stored: bool = True
    open: bool = True
    reported: bool = True


@dataclass
class Held:
    """What is on hold for a pod."""

    node_name: str
    shares: list[Share]
    deadline_s: float
    spares: dict[str, list[Share]] = field(default_factory=dict)
    """Name of another node -> what is kept there, too."""

    def all_shares(self) -> list[Share]:
        return self.shares + [share for shares in self.spares.values() for share in shares]

    def choose(self, name: str) -> None:
        """Keep what is on one node."""
        if name in self.spares:
            self.node_name, self.shares = name, self.spares[name]
        if name == self.node_name:
            self.spares = {}


class Naive:
    """What the ledger should say, without an index, a cache or a running total."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.holds: dict[str, Held] = {}
        self.ready: list[str] = []

    def counted(self, uuid: str, but: str = "", spares: bool = True) -> list[Share]:
        """Return the shares on a card: all holders, and the holds of pods that are not among them."""
        holders = self.lines[uuid].holders
        shares = [share for pod, share in holders if pod != but]
        for pod, held in self.holds.items():
            if pod != but and pod not in [holder for holder, _ in holders]:
                kept = held.all_shares() if spares else held.shares
                shares += [share for share in kept if share.uuid == uuid]
        return shares

    def used(self, uuid: str, but: str = "") -> tuple[int, int, int]:
        """Return memory, cores and number taken."""
        amounts = [share.amounts for share in self.counted(uuid, but)]
        return sum(a.memory_mib for a in amounts), sum(a.cores for a in amounts), sum(a.number for a in amounts)

    def takes(self, pod: str, share: Share) -> bool:
        """Tell whether a card has room for a pod's share."""
        others, used, room = self.counted(share.uuid, pod), self.used(share.uuid, pod), self.capacity(share.uuid)
        wanted = (share.amounts.memory_mib, share.amounts.cores, share.amounts.number)
        alone_or_shared = not others or not (share.exclusive or [other for other in others if other.exclusive])
        return alone_or_shared and all(used[i] + wanted[i] <= room[i] for i in range(3))

    def capacity(self, uuid: str) -> tuple[int, int, int]:
        """Return a card's memory, cores and number."""
        capacity = self.lines[uuid].card.capacity
        return capacity.memory_mib, capacity.cores, capacity.number

    def node_room(self, name: str, spares: bool = True) -> NodeRoom:
        """Return what placement should see of a node."""
        lines = sorted(
            (line for line in self.lines.values() if line.card.node_name == name and line.reported),
            key=lambda line: (line.card.index, line.card.uuid),
        )
        rooms = tuple(self.room(line.card, spares) for line in lines if line.open and line.card.healthy)
        return NodeRoom(name, OFFER if name in self.ready else None, tuple(line.card for line in lines), rooms)

    def room(self, card: Card, spares: bool = True) -> Room:
        """Return what should be left on a card."""
        shares, room = self.counted(card.uuid, spares=spares), self.capacity(card.uuid)
        amounts = [share.amounts for share in shares]
        used = sum(a.memory_mib for a in amounts), sum(a.cores for a in amounts), sum(a.number for a in amounts)
        free = Amounts(room[0] - used[0], room[1] - used[1], room[2] - used[2])
        return Room(card, free, idle=shares == [], shut=[s for s in shares if s.exclusive] != [])

    def held_at_server(self, pod: str) -> list[tuple[Card, Holder]]:
        """Return what the API server says a pod holds, by the cards' index."""
        found = [
            (line.card, a_holder(pod, share))
            for line in self.lines.values()
            for holder, share in line.holders
            if holder == pod
        ]
        return sorted(found, key=lambda pair: (pair[0].index, pair[0].uuid))


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.naive = Naive()
        self.version = 10
        self.before = {name: self.naive.node_room(name) for name in NODES}
        self.seen = 0

    def load(self, card: Card, holders: list[tuple[str, Share]] | None) -> None:
        """Let the API server tell something new about a card, which the model believes as it is."""
        self.version += 1
        told = None if holders is None else tuple(a_holder(pod, share) for pod, share in holders)
        assert self.ledger.load(StoredCard(card, self.version, told))
        known = self.naive.lines.get(card.uuid)
        kept = known.holders if known and holders is None else holders or []
        reported = known.reported if known else True
        self.naive.lines[card.uuid] = Line(card, self.version, kept, open=told is not None, reported=reported)

    # What the API server tells.

    @initialize(data=st.data())
    def start_with_some_cards(self, data: st.DataObject) -> None:
        for uuid, index in CARDS[:-1]:
            node_name = NODES[int(uuid[-1]) // 2]
            self.load(replace(a_card(index, node_name, uuid=uuid), capacity=data.draw(capacities)), [])
        for name in NODES[:2]:
            self.ledger.set_offer(name, OFFER)
            self.naive.ready.append(name)

    @rule(place=st.sampled_from(CARDS), node_name=st.sampled_from(NODES), capacity=capacities, healthy=st.booleans())
    def a_card_appears_changes_or_moves(
        self, place: tuple[str, int], node_name: str, capacity: Amounts, healthy: bool
    ) -> None:
        uuid, index = place
        known = self.naive.lines.get(uuid)
        card = replace(a_card(index, node_name, uuid=uuid, healthy=healthy), capacity=capacity)
        self.load(card, known.holders if known else [])

    @rule(uuid=uuids, capacity=capacities)
    def a_card_is_resized(self, uuid: str, capacity: Amounts) -> None:
        if line := self.naive.lines.get(uuid):
            self.load(replace(line.card, capacity=capacity), line.holders)

    @rule(uuid=uuids)
    def a_card_is_created_again_without_a_status(self, uuid: str) -> None:
        if line := self.naive.lines.get(uuid):
            self.load(line.card, None)

    @rule(uuid=uuids, pod=pods, want=wants)
    def another_writer_adds_a_holder(self, uuid: str, pod: str, want: tuple[int, int]) -> None:
        if line := self.naive.lines.get(uuid):
            others = [(holder, share) for holder, share in line.holders if holder != pod]
            self.load(line.card, [*others, (pod, a_share(line.card, *want))])

    @precondition(lambda self: self.naive.holds)
    @rule(data=st.data(), whole=st.booleans(), ends=st.booleans())
    def a_hold_is_committed(self, data: st.DataObject, whole: bool, ends: bool) -> None:
        """Its cards come with one more holder, perhaps only the first; then the hold is dropped, or expires later."""
        pod = data.draw(st.sampled_from(sorted(self.naive.holds)))
        shares = self.naive.holds[pod].shares
        for share in shares if whole else shares[:1]:
            if line := self.naive.lines.get(share.uuid):
                others = [(holder, held) for holder, held in line.holders if holder != pod]
                self.load(line.card, [*others, (pod, share)])
        if ends:
            self.drop(pod)

    @rule(pod=pods)
    def a_pod_is_released(self, pod: str) -> None:
        for line in list(self.naive.lines.values()):
            if pod in [holder for holder, _ in line.holders]:
                self.load(line.card, [(holder, share) for holder, share in line.holders if holder != pod])

    @rule(uuid=uuids, age=st.integers(0, 3), capacity=capacities, want=wants)
    def old_news_arrive(self, uuid: str, age: int, capacity: Amounts, want: tuple[int, int]) -> None:
        if line := self.naive.lines.get(uuid):
            card, changes = replace(line.card, capacity=capacity, node_name="node-c"), self.ledger.changes
            assert not self.ledger.load(StoredCard(card, line.version - age, (a_holder("p0", a_share(card, *want)),)))
            assert not self.ledger.load(StoredCard(card, line.version - age, None))
            assert not self.ledger.unload(uuid, line.version - 1 - age)
            assert self.ledger.changes == changes

    @rule(uuid=uuids, same_version=st.booleans())
    def a_card_is_lost(self, uuid: str, same_version: bool) -> None:
        self.version += 1
        line = self.naive.lines.get(uuid)
        version = line.version if line and same_version else self.version
        assert self.ledger.unload(uuid, version) == (line is not None)
        if line and line.holders:
            line.stored, line.open, line.version = False, False, version
        elif line:
            del self.naive.lines[uuid]

    @rule(uuid=uuids, first_status=st.booleans())
    def a_card_is_lost_and_comes_back(self, uuid: str, first_status: bool) -> None:
        if line := self.naive.lines.get(uuid):
            self.a_card_is_lost(uuid, same_version=False)
            self.load(line.card, line.holders if first_status else None)

    @rule(uuid=uuids, pod=pods)
    def a_pod_leaves_a_lost_card(self, uuid: str, pod: str) -> None:
        self.ledger.change_unstored(uuid, pod, None)
        line = self.naive.lines.get(uuid)
        if line and not line.stored:
            line.holders = [(holder, share) for holder, share in line.holders if holder != pod]
            if not line.holders:  # as for a card that nobody held when it was lost
                del self.naive.lines[uuid]

    # What nodes and clocks tell.

    @rule(uuid=uuids, reported=st.booleans())
    def a_node_reports_a_card_or_not(self, uuid: str, reported: bool) -> None:
        changes, line = self.ledger.changes, self.naive.lines.get(uuid)
        self.ledger.set_reported(uuid, reported)
        assert (self.ledger.changes != changes) == (line is not None and line.reported != reported)
        if line:
            line.reported = reported

    @rule(name=st.sampled_from(NODES), ready=st.booleans())
    def an_agent_answers_or_not(self, name: str, ready: bool) -> None:
        changes = self.ledger.changes
        self.ledger.set_offer(name, OFFER if ready else None)
        assert (self.ledger.changes != changes) == ((name in self.naive.ready) != ready)
        self.naive.ready = [n for n in self.naive.ready if n != name] + [name] * ready

    @rule(now_s=st.integers(0, 10))
    def time_passes(self, now_s: int) -> None:
        late = [pod for pod, held in self.naive.holds.items() if held.deadline_s <= now_s]
        assert sorted(self.ledger.expire_holds(now_s)) == sorted(late)
        for pod in late:
            del self.naive.holds[pod]

    # What placement asks for.

    @rule(
        pod=pods,
        names=st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True),
        parts=st.dictionaries(uuids, st.tuples(wants, st.booleans()), min_size=1, max_size=4),
        deadline_s=st.integers(0, 10),
    )
    def a_pod_is_placed(
        self, pod: str, names: list[str], parts: dict[str, tuple[tuple[int, int], bool]], deadline_s: int
    ) -> None:
        """Mostly on cards of one node or several, as placement does; a card of another is one that moved meanwhile."""
        shares_on: dict[str, list[Share]] = {name: [] for name in names}
        for uuid, (want, alone) in parts.items():
            here = next((name for name in names if self.is_on(uuid, name)), names[0])
            shares_on[here].append(a_share(a_card(uuid=uuid), *want, exclusive=alone))
        shares_on = {name: shares for name, shares in shares_on.items() if shares}
        fits = all(
            self.is_on(share.uuid, name) and self.naive.takes(pod, share)
            for name, shares in shares_on.items()
            for share in shares
        )
        preferred, *spares = (Placement(name, tuple(shares)) for name, shares in shares_on.items())
        changes = self.ledger.changes
        try:
            self.ledger.hold(pod, preferred, deadline_s, spares)
        except DoesNotFit:
            assert not fits
            assert self.ledger.changes == changes
            return
        assert fits
        (name, shares), *others = shares_on.items()
        self.naive.holds[pod] = Held(name, shares, deadline_s, dict(others))
        for share in self.naive.holds[pod].all_shares():
            self.nothing_is_over_allocated(pod, share)

    @rule(pod=pods, name=st.sampled_from(NODES))
    def one_of_the_nodes_is_chosen(self, pod: str, name: str) -> None:
        held, changes = self.naive.holds.get(pod), self.ledger.changes
        kept = self.ledger.keep(pod, name)
        if held is None or name not in (held.node_name, *held.spares):
            assert kept is None
            assert self.ledger.changes == changes
            return
        held.choose(name)
        assert kept == Placement(name, tuple(held.shares))

    @rule()
    def the_spares_are_taken_back(self) -> None:
        rooms = {name: self.ledger.room_without_spares(name) for name in NODES}
        assert self.ledger.take_back_spares() == any(held.spares for held in self.naive.holds.values())
        for held in self.naive.holds.values():
            held.choose(held.node_name)
        assert {name: self.ledger.node_room(name) for name in NODES} == rooms

    def is_on(self, uuid: str, name: str) -> bool:
        line = self.naive.lines.get(uuid)
        return line is not None and line.card.node_name == name

    def nothing_is_over_allocated(self, pod: str, accepted: Share) -> None:
        """Check a card at the moment at which the ledger accepted a share of it."""
        others, capacity = self.naive.counted(accepted.uuid, but=pod), self.naive.capacity(accepted.uuid)
        amounts = [share.amounts for share in (*others, accepted)]
        assert sum(a.memory_mib for a in amounts) <= capacity[0]
        assert sum(a.cores for a in amounts) <= capacity[1]
        assert sum(a.number for a in amounts) <= capacity[2]
        assert not others or not any(share.exclusive for share in (*others, accepted))

    @precondition(lambda self: self.naive.holds)
    @rule(data=st.data())
    def a_write_starts(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(sorted(self.naive.holds)))
        self.ledger.pin_hold(pod)
        self.naive.holds[pod].deadline_s = PINNED

    @rule(pod=pods)
    def a_hold_is_dropped(self, pod: str) -> None:
        self.drop(pod)

    def drop(self, pod: str) -> None:
        assert self.ledger.drop_hold(pod) == (pod in self.naive.holds)
        self.naive.holds.pop(pod, None)

    # What must be true after each step.

    @invariant()
    def every_card_holds_what_the_model_says(self) -> None:
        assert {entry.card.uuid for entry in self.ledger.entries()} == set(self.naive.lines)
        for uuid, line in self.naive.lines.items():
            entry = self.ledger.entry(uuid)
            assert entry is not None
            assert entry.card == line.card
            assert (entry.stored, entry.open, entry.reported) == (line.stored, line.open, line.reported)
            assert entry.used() == Amounts(*self.naive.used(uuid))
            assert entry.room() == self.naive.room(line.card)
            assert [(pod, holder.share) for pod, holder in entry.holders.items()] == line.holders
            assert entry.stored_use() == sum((share.amounts for _, share in line.holders), Amounts())

    @invariant()
    def every_pod_holds_what_the_model_says(self) -> None:
        holding = {pod for line in self.naive.lines.values() for pod, _ in line.holders}
        assert set(self.ledger.pod_uids()) == holding
        for pod in PODS:
            assert self.ledger.holders_of(pod) == self.naive.held_at_server(pod)
            hold, held = self.ledger.hold_of(pod), self.naive.holds.get(pod)
            assert (hold is None) == (held is None)
            if hold and held:
                assert hold.placement == Placement(held.node_name, tuple(held.shares))
                assert hold.spares == tuple(Placement(name, tuple(shares)) for name, shares in held.spares.items())
                assert hold.deadline_s == held.deadline_s
                assert self.ledger.first_deadline_s <= held.deadline_s

    @invariant()
    def every_node_looks_as_if_worked_out_anew_and_changes_are_named(self) -> None:
        rooms = {name: self.naive.node_room(name) for name in NODES}
        named = list(self.ledger.touched_since(self.seen))
        assert len(named) == len(set(named))
        for name, room in rooms.items():
            assert self.ledger.node_room(name) == room
            assert self.ledger.room_without_spares(name) == self.naive.node_room(name, spares=False)
            assert name in named or room == self.before[name]
        assert set(self.ledger.node_names()) == {line.card.node_name for line in self.naive.lines.values()}
        self.before, self.seen = rooms, self.ledger.changes
        assert list(self.ledger.touched_since(self.seen)) == []


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=200, stateful_step_count=50)
