"""The sums of each namespace's pods, and whether they may become more.

Counted are a pod's shares and claims at the API server, and its seat: once where these are of one card, and where a
seat has spares, the most that one of them takes; nothing of a card that is gone. Pods that are of no known namespace
are not limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import nlargest
from typing import Protocol

from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import NOTHING, Amounts, Card, total
from gpuledger.model.clock import Listeners
from gpuledger.model.gang import Counted, GroupSeat, Kind, QuotaLimit, SeatKey, kind_of
from gpuledger.model.request import Demand, Shape, phases
from gpuledger.model.share import Holder, HolderState, Placement, Pod

Use = dict[Kind, Amounts]
"""Kind of card -> what is had of such cards."""

Part = tuple[Kind, Amounts]

ENDLESS = 2**63
"""More than any limit leaves."""

LARGEST_NAMED = 3
"""Pods that are named as those that hold the most of a limit."""

_NO_USE: Use = {}
_NO_PARTS: dict[str, Part] = {}
_NO_CARDS: dict[str, Card] = {}
_NOT_COUNTED: tuple[str, Use] = ("", {})


class Kept(Protocol):
    """A seat, as far as it counts."""

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All that is kept, of which the pod gets one."""


class Left:
    """The amounts that a namespace's quotas leave, over all models of cards; less with each pod that takes."""

    def __init__(self, left: Iterable[tuple[QuotaLimit, int]]) -> None:
        self._left = list(left)

    def copy(self) -> Left:
        """Return another one that leaves as much."""
        return Left(self._left)

    def takes(self, shape: Shape) -> bool:
        """Take the least that a pod of a shape gets, if that much is left; return whether it was."""
        more = [limit.counted.of(least(shape, limit.vendor or None)) for limit, _ in self._left]
        if any(each and each > left for each, (_, left) in zip(more, self._left, strict=True)):
            return False
        self._left = [(limit, left - each) for each, (limit, left) in zip(more, self._left, strict=True)]
        return True


@dataclass(frozen=True, slots=True)
class Excess:
    """Why a limit is in the way of a pod or a gang. Amounts are MiB, percent of one card, or slots, as it counts."""

    limit: QuotaLimit
    asked: int
    """The least that they need; 0 if that depends on their cards."""
    used: int = 0
    """By others of the namespace: they have it, or are about to."""
    releasing: int = 0
    """What of it belongs to pods that have ended."""
    largest: tuple[tuple[Pod, int], ...] = ()
    """The pods that hold the most."""

    @property
    def is_for_ever(self) -> bool:
        """Return whether the limit itself is too low, whatever others use."""
        return self.asked > self.limit.most and not self.limit.spent

    @property
    def left(self) -> int:
        """Return what others leave of the limit."""
        return max(self.limit.most - self.used, 0)


class Tally:
    """What the namespaces of some seats would have with them: each is counted before it is taken."""

    def __init__(
        self, quotas: Quotas, without: Collection[SeatKey] = (), more_cards: Mapping[str, Card] = _NO_CARDS
    ) -> None:
        """Take the seats that are given up, or taken anew.

        `more_cards` are cards that the ledger does not have, by their UUIDs.
        """
        self._quotas = quotas
        self._more_cards = more_cards
        self._more: dict[str, Counter[QuotaLimit]] = {}  # namespace -> limit -> what these seats add to its sum
        self._of: dict[SeatKey, tuple[str, Counter[QuotaLimit]]] = {}  # seat -> its namespace, and its part of that
        self._without = without

    def add(self, key: SeatKey, placements: Iterable[Placement]) -> QuotaLimit | None:
        """Count a seat; return the first limit that it would exceed, and count nothing then."""
        quotas, namespace = self._quotas, self._quotas.namespace_of(key)
        limits = quotas.limits(namespace)
        if not limits:
            return None
        known = self._more.get(namespace)
        if known is None:
            known = self._more[namespace] = Counter(self._given_up(namespace, limits))
        most = Counter[QuotaLimit]()
        for placement in placements:
            for limit, more in quotas.besides(key, namespace, placement, self._more_cards).items():
                if more > 0 and quotas.used(namespace, limit) + known[limit] + more > limit.most:
                    return limit
                most[limit] = max(most[limit], more)
        known.update(most)
        self._of[key] = namespace, most
        return None

    def remove(self, key: SeatKey) -> None:
        """Count a seat no more. Idempotent."""
        namespace, counted = self._of.pop(key, ("", Counter()))
        if namespace:
            self._more[namespace].subtract(counted)

    def _given_up(self, namespace: str, limits: Iterable[QuotaLimit]) -> dict[QuotaLimit, int]:
        """Return what seats of pods to come free of limits, below 0; what pods have is their own if they get more."""
        keys = (key for key in self._without if isinstance(key, GroupSeat) and key.group.namespace == namespace)
        owns = [self._quotas.own(key, namespace) for key in keys]
        return {limit: -sum(_sum(own, limit) for own in owns) for limit in limits}


class Quotas:
    """Sums of the namespaces that have a limit, kept as holders and seats change.

    Before there is a first limit, nothing is kept; and of pods of other namespaces only what they hold.
    """

    def __init__(self, entries: Mapping[str, CardEntry], seats: Mapping[SeatKey, Kept]) -> None:
        self._entries = entries
        self._seats = seats
        self._is_following = False
        self._limits: dict[str, tuple[QuotaLimit, ...]] = {}  # namespace -> its limits
        self._namespaces: dict[str, str] = {}  # UID of a pod that waits -> its namespace
        self._holding: dict[str, set[str]] = {}  # namespace -> UIDs of the pods that hold something, or are to get it
        self._holder_in: dict[str, str] = {}  # UID of such a pod -> the namespace
        self._held: dict[str, dict[str, Part]] = {}  # pod UID -> card UUID -> what it holds of it
        self._promised: dict[str, dict[str, Part]] = {}  # pod UID -> card UUID -> what is promised to it
        self._counted: dict[SeatKey, tuple[str, Use]] = {}  # pod -> namespace, and what is in its sum of the pod
        self._sums: dict[str, Use] = {}
        self._lowest: dict[str, Amounts] = {}  # namespace -> the least that its limits allow, of whichever cards
        self.on_room = Listeners[[str]]()
        """Called with a namespace whose pods may have more than before."""
        self.on_change = Listeners[[str]]()
        """Called with a namespace whose sum has changed."""

    # Limits.

    def set_limits(self, namespace: str, limits: Collection[QuotaLimit]) -> None:
        """Note the limits of a namespace, in place of those before."""
        before = self._limits.pop(namespace, ())
        self._lowest.pop(namespace, None)
        if limits:
            self._limits[namespace] = tuple(limits)
            self._lowest[namespace] = Amounts(**{str(each): _lowest(each, limits) for each in Counted})
            if not self._is_following:
                self._is_following = True
                for entry in self._entries.values():
                    self.holders_changed(entry, {})
                    self.promises_changed(entry, {*entry.promises, *entry.claims})
        if bool(before) != bool(limits):
            waiting = (key for key in self._seats if self.namespace_of(key) == namespace)
            for uid in (*self._holding.get(namespace, ()), *waiting):
                self._recount(uid, namespace)
        if before and before != tuple(limits):
            self.on_room(namespace)

    def limits(self, namespace: str) -> tuple[QuotaLimit, ...]:
        """Return the limits of a namespace."""
        return self._limits.get(namespace, ())

    def limited(self) -> Collection[str]:
        """Return the namespaces that have a limit."""
        return self._limits.keys()

    def used(self, namespace: str, limit: QuotaLimit) -> int:
        """Return how much counts for a limit."""
        return _sum(self._sums.get(namespace, {}), limit)

    def besides(
        self, key: SeatKey, namespace: str, placement: Placement, more_cards: Mapping[str, Card] = _NO_CARDS
    ) -> dict[QuotaLimit, int]:
        """Return how much more counts for each limit with a placement of a pod; `more_cards` as in `Tally`."""
        use, own = _use(self._parts(placement, more_cards).values()), self.own(key, namespace)
        return {limit: max(_sum(use, limit) - _sum(own, limit), 0) for limit in self._limits.get(namespace, ())}

    def excess(self, namespace: str, limit: QuotaLimit, asked: int, asking: Iterable[SeatKey] = ()) -> Excess:
        """Return why a limit is in the way of those that ask. Costs what the namespace's pods hold."""
        own = sum(_sum(self.own(key, namespace), limit) for key in asking)
        held: list[tuple[int, str]] = []
        releasing = 0
        for uid in self._holding.get(namespace, ()):
            parts = self._held.get(uid, _NO_PARTS)
            amount = _sum(_use(parts.values()), limit)
            held.append((amount, uid))
            if any(self._entries[uuid].holders[uid].state is HolderState.RELEASING for uuid in parts):
                releasing += amount
        most = nlargest(LARGEST_NAMED, (each for each in held if each[0] > 0))
        largest = tuple((self._entries[next(iter(self._held[uid]))].holders[uid].pod, amount) for amount, uid in most)
        return Excess(limit, asked, max(self.used(namespace, limit) - own, 0), releasing, largest)

    def exceeded_by_holders(self, pod_uid: str, namespace: str) -> QuotaLimit | None:
        """Return the first limit that the pods of a namespace exceed by what they hold, and this pod has a part in.

        What is only promised to pods, or on hold for them, does not count: they come later, and are judged then.
        """
        own = _use(self._held.get(pod_uid, _NO_PARTS).values())
        suspects = [
            limit
            for limit in self._limits.get(namespace, ())
            if _sum(own, limit) > 0 and self.used(namespace, limit) > limit.most
        ]
        if not suspects:
            return None
        held = _use(part for uid in self._holding[namespace] for part in self._held.get(uid, _NO_PARTS).values())
        return next((limit for limit in suspects if _sum(held, limit) > limit.most), None)

    def _are_far(self, namespace: str, more: Iterable[Amounts]) -> bool:
        """Return whether a namespace with so much more exceeds none of its limits, whichever cards these are."""
        return total((*self._sums.get(namespace, _NO_USE).values(), *more)).fits_in(self._lowest[namespace])

    def sure_to_exceed(self, pod: Pod, shape: Shape) -> QuotaLimit | None:
        """Return the first limit that a pod would exceed whichever cards it gets, None if there is none."""
        limits = self._limits.get(pod.namespace)
        if not limits or self._are_far(pod.namespace, (least(shape),)):
            return None
        own = self.own(pod.uid, pod.namespace)
        for limit in limits:
            more = limit.counted.of(least(shape, limit.vendor or None)) - _sum(own, limit)
            if not limit.model and more > 0 and self.used(pod.namespace, limit) + more > limit.most:
                return limit
        return None

    def left(self, namespace: str) -> Left:
        """Return the amounts that the pods of a namespace may have beside their present ones."""
        limits = [limit for limit in self.limits(namespace) if not limit.model]
        return Left([(limit, limit.most - self.used(namespace, limit)) for limit in limits])

    def own(self, key: SeatKey, namespace: str) -> Use:
        """Return a pod's part of a namespace's use."""
        counted = self._counted.get(key, _NOT_COUNTED)
        return counted[1] if counted[0] == namespace else _NO_USE

    def refusing(self, key: SeatKey, placements: Iterable[Placement]) -> QuotaLimit | None:
        """Return the first limit that a pod would exceed with one of these placements, None if there is none."""
        namespace = self.namespace_of(key)
        if namespace not in self._limits:
            return None
        for placement in placements:
            if not self._are_far(namespace, [share.amounts for share in placement.shares]):
                limit = Tally(self).add(key, (placement,))
                if limit:
                    return limit
        return None

    # What the ledger and the watches say.

    def known(self) -> set[str]:
        """Return the UIDs of the pods of which the namespace was noted."""
        return set(self._namespaces)

    def knows(self, pod_uid: str, namespace: str) -> None:
        """Note the namespace of a pod that may get something."""
        if self._namespaces.get(pod_uid) != namespace:
            self._namespaces[pod_uid] = namespace
            self.seat_changed(pod_uid)

    def forget(self, pod_uid: str) -> None:
        """Record that a pod waits no more: what it holds says of which namespace it is."""
        self._namespaces.pop(pod_uid, None)

    def holders_changed(self, entry: CardEntry, before: Mapping[str, Holder]) -> None:
        """Record that a card has other holders than before, or that it is another one."""
        if not self._is_following:
            return
        uuid, kind = entry.card.uuid, kind_of(entry.card)
        for uid in before.keys() - entry.holders.keys():
            self._held.get(uid, {}).pop(uuid, None)
            self._changes(uid, before[uid].pod.namespace)
        for uid, holder in entry.holders.items():
            part = kind, holder.share.amounts
            held = self._held.setdefault(uid, {})
            if held.get(uuid) != part:
                held[uuid] = part
                self._changes(uid, holder.pod.namespace)
        for key in entry.seats:
            self.seat_changed(key)

    def promises_changed(self, entry: CardEntry, pod_uids: Iterable[str]) -> None:
        """Note what is promised to some pods of a card now."""
        if not self._is_following:
            return
        uuid, kind = entry.card.uuid, kind_of(entry.card)
        for uid in pod_uids:
            claim, promised = entry.claims.get(uid), self._promised.setdefault(uid, {})
            share = claim.share if claim else entry.promises.get(uid)
            if share is not None:
                promised[uuid] = kind, share.amounts
            else:
                promised.pop(uuid, None)
            self._changes(uid, claim.holder.pod.namespace if claim else self.namespace_of(uid))

    def seat_changed(self, key: SeatKey) -> None:
        """Record that a pod has another seat now, or none; or that a card of its seat has come, or is gone."""
        if self._limits and (key in self._seats or key in self._promised or key in self._counted):
            self._recount(key, self.namespace_of(key))

    def namespace_of(self, key: SeatKey) -> str:
        """Return a pod's namespace; that in whose sum it is where nothing else is known any more; or nothing."""
        if isinstance(key, GroupSeat):
            return key.group.namespace
        return self._namespaces.get(key) or self._counted.get(key, _NOT_COUNTED)[0]

    def _changes(self, uid: str, namespace: str) -> None:
        """Record that a pod holds something else, or something else is promised to it."""
        for table in (self._held, self._promised):
            if uid in table and not table[uid]:
                del table[uid]
        before = self._holder_in.pop(uid, None)
        if before is not None:
            self._holding[before].discard(uid)
            if not self._holding[before]:
                del self._holding[before]
        namespace = namespace or before or ""
        if uid in self._held or uid in self._promised:
            self._holder_in[uid] = namespace
            self._holding.setdefault(namespace, set()).add(uid)
        self._recount(uid, namespace)

    def _parts(self, placement: Placement, more_cards: Mapping[str, Card] = _NO_CARDS) -> dict[str, Part]:
        found: dict[str, Part] = {}
        for share in placement.shares:
            entry = self._entries.get(share.uuid)
            card = entry.card if entry is not None else more_cards.get(share.uuid)
            if card is not None:
                found[share.uuid] = kind_of(card), share.amounts
        return found

    def _recount(self, key: SeatKey, namespace: str) -> None:
        """Put a pod's use into the sum of its namespace, in place of its earlier part."""
        old_namespace, old = self._counted.pop(key, _NOT_COUNTED)
        new = self._use_of(key) if namespace in self._limits else _NO_USE
        if new:
            self._counted[key] = namespace, new
        if old == new and (old_namespace == namespace or not old):
            return
        if old:
            self._add(old_namespace, old, -1)
        if new:
            self._add(namespace, new, 1)
        left = new if namespace == old_namespace else _NO_USE
        if old and any(_sum(left, limit) < _sum(old, limit) for limit in self.limits(old_namespace)):
            self.on_room(old_namespace)

    def _add(self, namespace: str, use: Use, sign: int) -> None:
        known = self._sums.setdefault(namespace, {})
        for kind, amounts in use.items():
            found = known.pop(kind, NOTHING)
            left = found + amounts if sign > 0 else found - amounts
            if left != NOTHING:
                known[kind] = left
        if not known:
            del self._sums[namespace]
        self.on_change(namespace)

    def _use_of(self, key: SeatKey) -> Use:
        seat = self._seats.get(key)
        if isinstance(key, GroupSeat):
            its, parts = self._held.get(key.member, _NO_PARTS), self._parts(seat.placements[0]) if seat else {}
            return _use(part for uuid, part in parts.items() if uuid not in its)  # the pod before it is still there
        held = self._held.get(key, _NO_PARTS)
        if key in self._promised:
            held = self._promised[key] | held
        if seat is None:
            return _use(held.values())
        found, *spares = [_use((self._parts(placement) | held).values()) for placement in seat.placements]
        for spare in spares:
            for kind, amounts in spare.items():
                found[kind] = found.get(kind, NOTHING).peak(amounts)
        return found


def stated(limits: Iterable[QuotaLimit]) -> Iterator[QuotaLimit]:
    """Yield the limits on what pods have together: all but budgets that are spent."""
    return (limit for limit in limits if not limit.spent)


@lru_cache(1_024)
def least(shape: Shape, vendor: str | None = None) -> Amounts:
    """Return the least that a pod takes together of cards of a vendor, or of all, whichever these are."""
    found = NOTHING
    for phase in phases(shape):
        demands = (shape[each] for each in phase if vendor in (None, shape[each].wanted.vendor))
        found = found.peak(total(_least_of(demand) for demand in demands))
    return found


def asked_of(limit: QuotaLimit, shape: Shape, cards: Collection[Card] = ()) -> int:
    """Return the least that a pod takes of a limit, if it may get these cards; 0 if that depends on which it gets."""
    counted = [card for card in cards if limit.counts(card.vendor, card.model)]
    if counted:
        return min(limit.counted.of(_least_on(shape, limit.vendor, card)) for card in counted)
    depends = any(demand.memory_mib is None or demand.at_most_card for demand in shape)
    if limit.model or (limit.counted is Counted.MEMORY and depends):
        return 0
    return limit.counted.of(least(shape, limit.vendor or None))


def _least_on(shape: Shape, vendor: str, card: Card) -> Amounts:
    """Return the least that a pod takes if all its cards are like this one."""
    found = NOTHING
    for phase in phases(shape):
        demands = [shape[each] for each in phase if vendor in ("", shape[each].wanted.vendor)]
        found = found.peak(total(each.amounts_on(card.capacity) for each in demands for _ in range(each.cards)))
    return found


def is_certain(shape: Shape) -> bool:
    """Return whether how much memory a pod of one container takes is the same on whichever cards."""
    return len(shape) == 1 and shape[0].memory_mib is not None and not shape[0].at_most_card


def _least_of(demand: Demand) -> Amounts:
    memory_mib = 1 if demand.memory_mib is None or demand.at_most_card else demand.memory_mib
    return Amounts(demand.cards * memory_mib, demand.cards * demand.cores, demand.cards)


def _lowest(counted: Counted, limits: Iterable[QuotaLimit]) -> int:
    return min((limit.most for limit in limits if limit.counted is counted), default=ENDLESS)


def _use(parts: Iterable[Part]) -> Use:
    found: Use = {}
    for kind, amounts in parts:
        found[kind] = found[kind] + amounts if kind in found else amounts
    return found


def _sum(use: Use, limit: QuotaLimit) -> int:
    return sum(limit.counted.of(amounts) for kind, amounts in use.items() if limit.counts(*kind))
