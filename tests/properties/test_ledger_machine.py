"""The ledger against a naive model: whatever happens in whatever order, no share is lost and no card over-allocated.

The model's view of the API server is what the server told last, so a commit is a card that comes with one more holder,
a release one that comes with one less. What the clock says grows.
"""

from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from builders import OFFER, a_card, a_holder, a_share
from effort import times
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import FOREVER, Seat, Strength
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import ShareRefused
from gpuledger.model.share import Placement, Share, StoredCard
from properties.naive_ledger import Held, Line, Naive, a_claim, sums

NODES = ["node-a", "node-b", "node-c"]
CARDS = [("GPU-0", 0), ("GPU-1", 1), ("GPU-2", 0), ("GPU-3", 1), ("GPU-4", 0)]
PODS = ["p0", "p1", "p2", "p3", "p4"]

uuids = st.sampled_from([uuid for uuid, _ in CARDS])
pods = st.sampled_from(PODS)
crowds = st.lists(pods, min_size=2, max_size=4, unique=True)
capacities = st.sampled_from([Amounts(16, 100, 8), Amounts(8, 100, 4), Amounts(8, 100, 1), Amounts(3, 50, 2)])
WANTS = [(1, 0), (2, 30), (4, 50), (8, 100), (3, 51)]
wants = st.sampled_from(WANTS)
mostly = st.sampled_from([True] * 4 + [False])


def shares_of(card: Card, alone: bool) -> list[Share]:
    """Return what pods ask for of a card."""
    return [a_share(card, *want, exclusive=alone) for want in WANTS]


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.naive = Naive()
        self.version = 10
        self.now_s = 0
        self.before = {name: self.naive.node_room(name) for name in NODES}
        self.seen = 0
        self.happened: Counter[str] = Counter()

    def load(self, card: Card, holders: list[tuple[str, Share]] | None, claims: dict[str, Share] | None = None) -> None:
        """Let the API server tell something new about a card, which the model believes as it is.

        Claims stay as they are if none are given, but for those of pods that have become holders.
        """
        self.version += 1
        line = self.naive.lines.setdefault(card.uuid, Line(card, self.version))
        if holders is not None:
            line.holders = holders
            here = [pod for pod, _ in holders]
            kept = line.claims if claims is None else claims
            line.claims = {pod: share for pod, share in kept.items() if pod not in here}
        told = None if holders is None else tuple(a_holder(pod, share) for pod, share in holders)
        listed = tuple(a_claim(pod, share) for pod, share in line.claims.items()) if holders is not None else ()
        assert self.ledger.load(StoredCard(card, self.version, told, claims=listed))
        line.card, line.version, line.stored, line.open = card, self.version, True, told is not None

    # What the API server tells.

    @initialize(data=st.data())
    def start_with_some_cards(self, data: st.DataObject) -> None:
        for uuid, index in CARDS[:-1]:
            node_name = NODES[int(uuid[-1]) // 2]
            self.load(replace(a_card(index, node_name, uuid=uuid), capacity=data.draw(capacities)), [])
        for name in NODES[:2]:
            self.ledger.set_offer(name, OFFER)
            self.naive.ready.append(name)
        self.pods_are_placed(data.draw(crowds), alone=False, careful=True, data=data)

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
        if line is None:
            return
        line.stored, line.open, line.version, line.claims = False, False, version, {}
        if not line.holders:
            del self.naive.lines[uuid]
        for age in (0, 1):  # what was written before the deletion, or is told with its version
            assert not self.ledger.load(StoredCard(line.card, version - age, ()))

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

    @precondition(lambda self: len(self.naive.holds) > 1)
    @rule()
    def the_first_of_several_holds_ends(self) -> None:
        first_s = min(held.deadline_s for held in self.naive.holds.values())
        if first_s != FOREVER:
            self.time_passes(max(0, int(first_s) - self.now_s))

    @rule(by_s=st.integers(1, 4))
    def time_passes(self, by_s: int) -> None:
        self.now_s += by_s
        late = [pod for pod, held in self.naive.holds.items() if held.deadline_s <= self.now_s]
        assert sorted(str(seat.key) for seat in self.ledger.seats.expire(self.now_s)) == sorted(late)
        for pod in late:
            del self.naive.holds[pod]
        self.happened["holds that expired"] += len(late)
        self.happened["expired while another stayed"] += bool(late and self.naive.holds)

    # What placement asks for.

    @rule(
        crowd=crowds,
        alone=st.sampled_from([False, False, True]),
        careful=mostly,
        data=st.data(),
    )
    def pods_are_placed(self, crowd: list[str], alone: bool, careful: bool, data: st.DataObject) -> None:
        """Mostly where there is room, each on one node or several, as placement does; now and then anywhere."""
        for pod in crowd:
            names = data.draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True))
            anywhere = {uuid: shares_of(a_card(uuid=uuid), alone) for uuid, _ in CARDS}
            choices = self.where_it_fits(pod, names, alone) if careful else anywhere
            if not choices:
                continue
            shares_on: dict[str, list[Share]] = {}
            for uuid in data.draw(st.lists(st.sampled_from(sorted(choices)), min_size=1, max_size=3, unique=True)):
                here = next((name for name in names if self.is_on(uuid, name)), names[0])
                shares_on.setdefault(here, []).append(data.draw(st.sampled_from(choices[uuid])))
            early = data.draw(st.sampled_from([False, False, True]))
            self.hold(pod, shares_on, self.now_s + data.draw(st.integers(1, 40)), early)
        if len(self.naive.holds) > 1 and data.draw(st.booleans()):
            self.the_first_of_several_holds_ends()

    def where_it_fits(self, pod: str, names: list[str], alone: bool) -> dict[str, list[Share]]:
        """Return the shares that a pod could have of each card of some nodes."""
        shares = {
            uuid: shares_of(line.card, alone) for uuid, line in self.naive.lines.items() if line.card.node_name in names
        }
        fitting = {uuid: [share for share in of_one if self.naive.takes(pod, share)] for uuid, of_one in shares.items()}
        return {uuid: of_one for uuid, of_one in fitting.items() if of_one}

    @precondition(lambda self: self.naive.lines)
    @rule(data=st.data(), lasts_s=st.integers(0, 6))
    def a_pod_is_placed_where_it_is_already(self, data: st.DataObject, lasts_s: int) -> None:
        """As at a second attempt of its bind; the card may have shrunk meanwhile."""
        uuid = data.draw(st.sampled_from(sorted(self.naive.lines)))
        line = self.naive.lines[uuid]
        if line.holders:
            pod, share = data.draw(st.sampled_from(line.holders))
            self.hold(pod, {line.card.node_name: [share]}, self.now_s + lasts_s)

    def hold(self, pod: str, shares_on: dict[str, list[Share]], until_s: int, early: bool = False) -> None:
        """Try to keep shares on some nodes, the preferred first; offers to others have to make room, except early."""
        offered = [(name, share) for name, shares in shares_on.items() for share in shares]
        fits = all(
            self.is_on(share.uuid, name) and self.naive.takes(pod, share, spares=early) for name, share in offered
        )
        beside_all = all(self.is_on(s.uuid, name) and self.naive.takes(pod, s, spares=True) for name, s in offered)
        preferred, *spares = (Placement(name, tuple(shares)) for name, shares in shares_on.items())
        changes = self.ledger.changes
        self.happened["seats that were tried"] += 1
        strength = Strength.OFFER if early else Strength.CHOSEN
        try:
            self.ledger.seats.take(Seat(pod, preferred, until_s, strength, tuple(spares)))
        except ShareRefused:
            assert not fits
            assert self.ledger.changes == changes
            return
        assert fits
        self.naive.holds.pop(pod, None)
        self.offers_make_room([share for _, share in offered], beside_all)
        (name, shares), *others = shares_on.items()
        self.naive.holds[pod] = Held(name, shares, until_s, dict(others), early)
        self.happened["made for a pod before it is asked for"] += early
        self.happened["seats that were taken"] += 1
        self.happened["made beside another"] += len(self.naive.holds) > 1
        for share in self.naive.holds[pod].all_shares():
            self.nothing_is_over_allocated(pod, share)

    def offers_make_room(self, shares: list[Share], beside_all: bool) -> None:
        """Note whose offers were taken back for some shares: of their cards alone, and none if there was room."""
        uuids = {share.uuid for share in shares}
        for pod, held in list(self.naive.holds.items()):
            seat = self.ledger.seats.of(pod)
            if held.has_spares and (seat is None or not seat.has_offers):
                assert not beside_all
                assert uuids & {share.uuid for share in held.all_shares()}
                self.happened["offers that were taken back"] += 1
                if held.early:
                    del self.naive.holds[pod]
                else:
                    held.choose(held.node_name)

    @rule(pod=pods, name=st.sampled_from(NODES))
    def one_of_the_nodes_is_chosen(self, pod: str, name: str) -> None:
        held, changes = self.naive.holds.get(pod), self.ledger.changes
        kept = self.ledger.seats.settle(pod, name)
        if held is None or name not in (held.node_name, *held.spares):
            assert kept is None
            assert self.ledger.changes == changes
            return
        held.choose(name)
        assert kept == Placement(name, tuple(held.shares))

    @invariant()
    def a_node_looks_without_offers_as_if_they_were_not_there(self) -> None:
        for name in NODES:
            assert self.ledger.room_if(name) == self.naive.node_room(name, spares=False)

    def is_on(self, uuid: str, name: str) -> bool:
        line = self.naive.lines.get(uuid)
        return line is not None and line.card.node_name == name

    def nothing_is_over_allocated(self, pod: str, accepted: Share) -> None:
        """Check a card at the moment at which the ledger accepted a share of it."""
        if (pod, accepted) in self.naive.lines[accepted.uuid].holders:
            return  # it takes nothing that was free
        others, capacity = self.naive.counted(accepted.uuid, but=pod), self.naive.capacity(accepted.uuid)
        for used, room in zip(sums([*others, accepted]), capacity, strict=True):
            assert used <= room
        assert not others or not any(share.exclusive for share in (*others, accepted))

    @precondition(lambda self: self.naive.holds)
    @rule(data=st.data())
    def a_write_starts(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(sorted(self.naive.holds)))
        self.ledger.seats.strengthen(pod, Strength.BINDING, FOREVER)
        self.naive.holds[pod].deadline_s, self.naive.holds[pod].early = FOREVER, False

    @rule(pod=pods)
    def a_hold_is_dropped(self, pod: str) -> None:
        self.drop(pod)

    def drop(self, pod: str) -> None:
        assert self.ledger.seats.give_up(pod) == (pod in self.naive.holds)
        self.naive.holds.pop(pod, None)

    # What is promised to those for whom others have to leave.

    @precondition(lambda self: self.naive.lines)
    @rule(data=st.data(), pod=pods, want=wants)
    def room_is_promised(self, data: st.DataObject, pod: str, want: tuple[int, int]) -> None:
        """Perhaps more than there is: others are still there."""
        line = self.naive.lines[data.draw(st.sampled_from(sorted(self.naive.lines)))]
        share = a_share(line.card, *want)
        self.withdraw(pod)
        self.ledger.promises.make(pod, Placement(line.card.node_name, (share,)))
        line.promises[pod] = share

    @rule(pod=pods)
    def a_promise_is_withdrawn(self, pod: str) -> None:
        self.ledger.promises.withdraw(pod)
        self.withdraw(pod)

    def withdraw(self, pod: str) -> None:
        for line in self.naive.lines.values():
            line.promises.pop(pod, None)

    @rule(uuid=uuids, pod=pods, want=wants, ends=st.booleans())
    def a_claim_is_listed_or_ends(self, uuid: str, pod: str, want: tuple[int, int], ends: bool) -> None:
        line = self.naive.lines.get(uuid)
        if line and line.open:
            others = {name: share for name, share in line.claims.items() if name != pod}
            self.load(line.card, line.holders, others if ends else others | {pod: a_share(line.card, *want)})

    @invariant()
    def a_claim_is_taken_when_it_fits_beside_all_that_is_there(self) -> None:
        for uuid, line in self.naive.lines.items():
            entry = self.ledger.entry(uuid)
            assert entry is not None
            for pod, share in line.claims.items():
                fits = self.naive.fits(share, self.naive.counted(uuid, but=pod, promised=False))
                assert entry.takes_now(a_claim(pod, share)) == fits

    # What must be true after each step.

    @invariant()
    def every_card_holds_what_the_model_says(self) -> None:
        assert {entry.card.uuid for entry in self.ledger.entries()} == set(self.naive.lines)
        for uuid, line in self.naive.lines.items():
            entry = self.ledger.entry(uuid)
            assert entry is not None
            assert entry.card == line.card
            assert (entry.stored, entry.open, entry.reported) == (line.stored, line.open, line.reported)
            assert entry.used() == Amounts(*sums(self.naive.counted(uuid)))
            assert entry.room() == self.naive.room(line.card)
            assert [(pod, holder.share) for pod, holder in entry.holders.items()] == line.holders

    @invariant()
    def every_pod_holds_what_the_model_says(self) -> None:
        holding = {pod for line in self.naive.lines.values() for pod, _ in line.holders}
        assert set(self.ledger.holders.uids()) == holding
        for pod in PODS:
            assert self.ledger.holders.of(pod) == self.naive.held_at_server(pod)
            hold, held = self.ledger.seats.of(pod), self.naive.holds.get(pod)
            assert (hold is None) == (held is None)
            if hold and held:
                assert hold.placement == Placement(held.node_name, tuple(held.shares))
                assert hold.spares == tuple(Placement(name, tuple(shares)) for name, shares in held.spares.items())
                assert (hold.until_s, hold.strength is Strength.OFFER) == (held.deadline_s, held.early)
                assert self.ledger.seats.first_deadline_s <= held.deadline_s

    @invariant()
    def every_node_looks_as_if_worked_out_anew_and_changes_are_named(self) -> None:
        rooms = {name: self.naive.node_room(name) for name in NODES}
        named = list(self.ledger.touched_since(self.seen))
        assert len(named) == len(set(named))
        for name, room in rooms.items():
            assert self.ledger.node_room(name) == room
            assert name in named or room == self.before[name]
        assert set(self.ledger.node_names()) == {line.card.node_name for line in self.naive.lines.values()}
        self.before, self.seen = rooms, self.ledger.changes
        assert list(self.ledger.touched_since(self.seen)) == []


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=times(40, 600, check=12), stateful_step_count=40)
