"""Changes of a card's status, each with a caller that waits for it, and the JSON patch that carries out several."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from gpuledger.formats.custom_resource.stored_card import (
    MAX_CLAIMS,
    MAX_CONFLICTS,
    MAX_ENDED,
    charged_json,
    claim_json,
    ended_json,
    holder_json,
    in_milliseconds,
    misfit_json,
    pods_column,
    seat_json,
    used_json,
    wasted_json,
)
from gpuledger.ledger.entry import CardEntry, why_not
from gpuledger.ledger.usage import ended_share, wasted_after, wasted_ms
from gpuledger.model.card import NOTHING, Amounts, CardPhase
from gpuledger.model.clock import time_of
from gpuledger.model.errors import GpuledgerError, ShareRefused
from gpuledger.model.json_object import Json
from gpuledger.model.share import Claim, Holder, HolderState, Misfit, Pod, Share, StoredSeat
from gpuledger.model.usage import EndedShare


def charged(holder: Holder, now: datetime | None) -> Holder:
    """Return a holder that is charged from now on, if it is not already and its state is charged.

    What is allocated is, and a stored seat; not what is reserved for a pod that waits. None: no accounts are kept.
    """
    counts = holder.state is HolderState.ALLOCATED or holder.is_seat
    if now is None or holder.since or not counts:
        return holder
    created = time_of(holder.pod.charge.created)
    waited_s = 0 if created is None else max(0, int((now - created).total_seconds()))
    return replace(holder, since=in_milliseconds(now), waited_s=waited_s)


ACCOUNT_REVISION: Final = "/status/accountRevision"


@dataclass(eq=False)
class Entry(ABC):
    """One change of a card's status, and the future of the caller that waits for it."""

    settled: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    refusals: int = 0
    """How often the API server has refused a patch with this entry in it."""
    may_arrive_late: bool = False
    """A patch with it had no answer: it may still be under way, and be carried out after a later one."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """The subject of the entry: a pod's UID, or the card itself."""

    def unanswered(self, error: GpuledgerError) -> None:
        """Record that the API server has not said what has become of a patch, of this entry or of one before it."""
        self.may_arrive_late = True

    def succeed(self) -> None:
        """Tell the waiting task that the API server has accepted the entry."""
        if not self.settled.done():
            self.settled.set_result(None)

    def fail(self, error: GpuledgerError) -> None:
        """Tell the waiting task that the entry was refused."""
        if not self.settled.done():
            self.settled.set_exception(error)


@dataclass(eq=False)
class Add(Entry):
    """Enter a holder, or give an equal one that is there this one's attempt. Either way its pod's claim has come true.

    A caller that waits can withdraw it, by cancelling the future, as long as it is not sent.
    """

    holder: Holder = field(kw_only=True)
    took_over: set[str] = field(default_factory=set, init=False)
    """Names of the attempts whose equal holder was to be this one's."""

    def changed(self, present: Holder) -> Holder:
        """Return an equal holder as it is afterwards: what is allocated does not become reserved again."""
        kept = present if present.state is HolderState.ALLOCATED else self.holder
        return replace(
            present,
            attempt=self.holder.attempt,
            state=kept.state,
            deadline=kept.deadline,
            share=self.holder.share,
            seat=self.holder.seat or present.seat,
            since=kept.since,
            waited_s=kept.waited_s,
            pod=kept.pod,
        )

    def sits_in(self, seat: StoredSeat | None) -> None:
        """Note the stored seat in the place of which the holder is entered."""
        self.holder = replace(self.holder, seat=seat)

    def takes_over_from(self, present: Holder) -> bool:
        """Return whether a holder is an equal one; room that was reserved does not know the claims' names yet."""
        if present.state is HolderState.RESERVED:
            return _without_claims(present.share) == _without_claims(self.holder.share)
        return present.share == self.holder.share

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.holder.pod.uid


@dataclass(eq=False)
class Remove(Entry):
    """Take a pod off the card. Not tried again without an answer: etcd may be an older one after that, with the pod."""

    pod_uid: str = field(kw_only=True)
    only: Holder | None = field(default=None, kw_only=True)
    """Only this attempt's holder, in this state: a newer attempt of the pod may have entered it again."""
    is_charged: bool = field(default=True, kw_only=True)
    """Whether the pod has had it. One that was not bound has not."""

    def unanswered(self, error: GpuledgerError) -> None:
        """Have the waiter look at the pod again."""
        self.fail(error)

    def applies_to(self, present: Holder | None) -> bool:
        """Return whether there is something to remove."""
        if present is None or self.only is None:
            return present is not None
        return (present.attempt, present.state) == (self.only.attempt, self.only.state)

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.pod_uid


@dataclass(eq=False)
class Change(Entry):
    """Give a holder the state and deadline of this one. Nothing happens if the pod has left, or has another share.

    Another share is that of another operator, which binds the same pod: it is not ours to touch.
    """

    holder: Holder = field(kw_only=True)
    charged_from: datetime | None = field(default=None, kw_only=True)
    """From when on the share is charged if it was not before; None: no accounts are kept."""

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.holder.pod.uid

    def applies_to(self, present: Holder | None) -> bool:
        """Return whether there is something to change."""
        if present is None or present.share != self.holder.share:
            return False
        if self.holder.state is HolderState.RELEASING and not self.holder.deadline:  # it is so already
            return present.state is not HolderState.RELEASING
        return (present.state, present.deadline) != (self.holder.state, self.holder.deadline)

    def changed(self, present: Holder) -> Holder:
        """Return the holder as it is afterwards."""
        return charged(replace(present, state=self.holder.state, deadline=self.holder.deadline), self.charged_from)


@dataclass(eq=False)
class Describe(Entry):
    """Set the card's phase and the reason for it; the first time, open the card for holders."""

    phase: str = field(kw_only=True)
    reason: str = field(kw_only=True)

    @property
    def subject(self) -> str:
        """The card; no pod has an empty UID."""
        return ""


@dataclass(eq=False)
class ShowConflict(Entry):
    """Write a pod's share to the card's conflicts, in place of its earlier one; None removes it."""

    pod_uid: str = field(kw_only=True)
    misfit: Misfit | None = field(kw_only=True)

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.pod_uid


@dataclass(eq=False)
class SetClaim(Entry):
    """Write a pod's claim to the card, in place of its earlier one; None removes it."""

    pod_uid: str = field(kw_only=True)
    claim: Claim | None = field(kw_only=True)

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.pod_uid


@dataclass(eq=False)
class Settle(Entry):
    """Take shares that have ended off the card's list: their namespaces' records have them."""

    keys: frozenset[str] = field(kw_only=True)

    @property
    def subject(self) -> str:
        """The list; no pod's UID is like this."""
        return "ended"

    def fail(self, error: GpuledgerError) -> None:
        """Leave them there: whoever wants them off looks at the card again."""
        self.succeed()


@dataclass(frozen=True, slots=True)
class Bequest:
    """The part of a share that another pod gets: that of one ResourceClaim, which it uses as well."""

    heir: Pod
    claim_uid: str
    claim_name: str
    """The heir's name for the claim."""


@dataclass(eq=False)
class HandOver(Entry):
    """Give ResourceClaims' parts of a pod's share to other pods that use the claims, and take the pod off the card.

    In one write, so that no other pod gets the room in between. Not tried again without an answer, like a removal.
    """

    holder: Holder = field(kw_only=True)
    """The holder that leaves, unchanged."""
    bequests: tuple[Bequest, ...] = field(kw_only=True)
    attempt: str = field(kw_only=True)
    is_charged: bool = field(default=True, kw_only=True)
    """Whether the pod that leaves has had it."""
    charged_from: datetime | None = field(default=None, kw_only=True)
    """From when on the heirs are charged; None: no accounts are kept."""

    @property
    def subject(self) -> str:
        """The UID of the pod that leaves."""
        return self.holder.pod.uid

    def unanswered(self, error: GpuledgerError) -> None:
        """Have the waiter look at the pods again."""
        self.fail(error)

    def applies_to(self, present: Holder | None) -> bool:
        """Return whether the one that leaves is there, as it was."""
        return present is not None and (present.attempt, present.state) == (self.holder.attempt, self.holder.state)

    def inherited(self, bequest: Bequest, leaving: Holder, present: Holder | None) -> Holder:
        """Return an heir's holder afterwards; `present` is what it holds of the card already."""
        parts = tuple(
            replace(part, name=f"{bequest.claim_name}/{part.name.partition('/')[2]}")
            for part in leaving.share.containers
            if part.claim is not None and part.claim.uid == bequest.claim_uid
        )
        amounts = Amounts(sum(part.memory_mib for part in parts), sum(part.cores for part in parts), 1)
        if leaving.share.exclusive:  # nobody else is there: who is present has inherited all of it just now
            amounts = leaving.share.amounts if present is None else NOTHING
        if present is None:
            share = replace(leaving.share, amounts=amounts, containers=parts)
            return charged(Holder(bequest.heir, share, attempt=self.attempt), self.charged_from)
        both = replace(present.share.amounts + amounts, number=present.share.amounts.number)
        share = replace(present.share, amounts=both, containers=(*present.share.containers, *parts))
        since = in_milliseconds(self.charged_from) if present.since and self.charged_from else present.since
        return replace(present, share=share, attempt=self.attempt, since=since, waited_s=0)


def _without_claims(share: Share) -> Share:
    return replace(share, containers=tuple(replace(part, claim=None) for part in share.containers))


def open_entries(card: CardEntry, entries: Sequence[Entry], vacated: Sequence[Holder] = ()) -> list[Entry]:
    """Return the entries that still need a write; settle those that are done, withdrawn, or can't fit.

    Goes by what memory knows of the API server's holders, without the stored seats that leave with the write. Room that
    others have on hold does not count here: their entries come later, and are judged then.
    """
    leaving = {*_leaving(card, entries), *(holder.pod.uid for holder in vacated)}
    staying = [holder for uid, holder in card.listed.items() if uid not in leaving]
    still_open: list[Entry] = []
    for entry in entries:
        if entry.settled.done():
            continue
        if isinstance(entry, Add):
            if _settle_add(card, entry, staying):
                continue
            if entry.subject not in card.listed:
                staying.append(entry.holder)
        elif _is_done(card, entry):
            entry.succeed()
            continue
        elif isinstance(entry, ShowConflict | SetClaim) and not card.open:
            entry.fail(ShareRefused(f"card {card.card.uuid} takes no pods yet"))
            continue
        elif isinstance(entry, SetClaim) and len(_claims(card, [entry])) > MAX_CLAIMS:
            entry.fail(ShareRefused(f"card {card.card.uuid} is promised to {MAX_CLAIMS} pods already"))
            continue
        elif isinstance(entry, ShowConflict) and len(_misfits(card, [entry])) > MAX_CONFLICTS:
            entry.fail(ShareRefused(f"card {card.card.uuid} lists {MAX_CONFLICTS} conflicts already"))
            continue
        still_open.append(entry)
    return still_open


def _leaving(card: CardEntry, entries: Sequence[Entry]) -> set[str]:
    """Return the UIDs of the pods that these entries take off the card."""
    removals = (entry for entry in entries if isinstance(entry, Remove))
    return {entry.pod_uid for entry in removals if entry.applies_to(card.listed.get(entry.pod_uid))}


def _settle_add(card: CardEntry, entry: Add, staying: Sequence[Holder]) -> bool:
    uid, share = entry.holder.pod.uid, entry.holder.share
    present = card.listed.get(uid)
    if present is not None and present.state is HolderState.RELEASING:
        entry.fail(
            ShareRefused(f"an earlier share of pod {entry.holder.pod} on card {share.uuid} is still being released")
        )
    elif present is not None and entry.takes_over_from(present):
        if present.attempt == entry.holder.attempt and present.share == share:
            entry.succeed()
        elif present.state is not HolderState.RESERVED:  # a reserved one has never bound the pod
            entry.took_over.add(present.attempt)  # this is what memory says; another attempt may be taking it back now
    elif present is not None:
        entry.fail(ShareRefused(f"pod {entry.holder.pod} holds another share of card {share.uuid} already"))
    elif not card.open:
        entry.fail(ShareRefused(f"card {share.uuid} takes no pods yet"))
    elif why := why_not(share, [other.share for other in staying], card.card.capacity):
        entry.fail(ShareRefused(f"card {share.uuid} {why} any more"))
    return entry.settled.done()


def _is_done(card: CardEntry, entry: Entry) -> bool:
    match entry:
        case Remove():
            return not entry.applies_to(card.listed.get(entry.pod_uid))
        case Change():
            return not entry.applies_to(card.listed.get(entry.holder.pod.uid))
        case HandOver():
            return not entry.applies_to(card.listed.get(entry.subject))
        case Describe():
            return card.open and (card.phase, card.reason) == (entry.phase, entry.reason)
        case ShowConflict():
            return entry.misfit == next((m for m in card.misfits if m.pod.uid == entry.pod_uid), None)
        case SetClaim():
            return entry.claim == card.claims.get(entry.pod_uid)
        case Settle():
            return not any(ended.key in entry.keys for ended in card.ended or ())
    raise TypeError(f"unknown entry {entry!r}")


def _begun(new: Holder, old: Holder | None, so_far_ms: int) -> Holder:
    """Return a holder that notes what has been wasted of its card, if its time begins with this write."""
    begins = new.since and (old is None or new.since != old.since)
    return replace(new, wasted_before_ms=so_far_ms) if so_far_ms and begins else new


def patch_of(
    card: CardEntry,
    entries: Sequence[Entry],
    vacated: Sequence[Holder] = (),
    over: Sequence[EndedShare] = (),
    now: datetime | None = None,
) -> list[Json]:
    """Return the JSON patch that makes these changes at once, from the holders that memory knows.

    The stored seats that are `vacated` leave with it: a pod's share takes the place of the seat that it had. What is
    `over` with it is listed, to be charged; by `now` that goes on which stays, None if no accounts are kept.

    Changes come first, then removals from the highest index down: so no index moves before it is used. Each index is
    tested for the pod and its attempt: a stale index of an equal share would not show in the sums, nor would an entry
    that was removed and recreated since. What enters a holder is tested for the last share that was listed as ended:
    where the card is as empty again as it was, the sums would not show that the same share is over since.
    """
    if not card.open:
        return _opening_patch(card, entries)
    operations: list[Json] = []
    holders = dict(card.listed)
    so_far_ms = wasted_until(card, now)
    places = {uid: place for place, uid in enumerate(holders)}
    for entry in entries:
        if isinstance(entry, Add | Change) and entry.subject in holders:
            old = holders[entry.subject]
            new = holders[entry.subject] = _begun(entry.changed(old), old, so_far_ms)
            operations += _edit(places[entry.subject], old, new)
        elif isinstance(entry, HandOver):
            for bequest in entry.bequests:
                operations += _bequeath(entry, bequest, holders, places, so_far_ms)
    removals = {holder.pod.uid: holder for holder in vacated} | _removals(entries)
    for uid in sorted(removals, key=lambda uid: -places[uid]):
        place, old = places[uid], holders.pop(uid)
        operations += _tests(place, old) if removals[uid] else _tests_of_attempt(place, old)
        operations.append({"op": "remove", "path": f"/status/holders/{place}"})
    for entry in entries:
        if isinstance(entry, Add) and entry.subject not in holders:
            new = holders[entry.subject] = _begun(entry.holder, None, so_far_ms)
            operations.append({"op": "add", "path": "/status/holders/-", "value": holder_json(new)})
        elif isinstance(entry, Describe):
            operations += [_status("phase", entry.phase), _status("reason", entry.reason)]
    operations += _conflicts_patch(card, entries) + _claims_patch(card, entries)
    operations += _entering_tests(card, entries) + _ended_patch(card, entries, over)
    if any(not isinstance(entry, Describe | ShowConflict | SetClaim | Settle) for entry in entries):
        operations += [_status("used", used_json(holders.values())), _status("pods", pods_column(holders.values()))]
        operations += _wasted_patch(card, so_far_ms, list(holders.values()), now)
    return operations


def wasted_until(card: CardEntry, now: datetime | None) -> int:
    """Return what has been wasted of a card until now, since it was free; 0 if no accounts are kept."""
    if card.wasted is None or now is None:
        return 0
    return wasted_ms(card.wasted, list(card.listed.values()), card.card, now)


def _wasted_patch(card: CardEntry, so_far_ms: int, holders: Sequence[Holder], now: datetime | None) -> list[Json]:
    """Return the operations that write what has been wasted, if there is something or was; of most cards nothing is."""
    before = card.wasted
    after = None if now is None else wasted_after(before, so_far_ms, holders, card.card, now)
    if after == before:
        return []
    test = [] if before is None else [{"op": "test", "path": "/status/wasted", "value": wasted_json(before)}]
    if after is None:
        return [*test, {"op": "remove", "path": "/status/wasted"}]
    return [*test, _status("wasted", wasted_json(after))]


def ended_by(
    card: CardEntry,
    entries: Sequence[Entry],
    vacated: Sequence[Holder],
    now: datetime | None,
    idle_s: Callable[[str, str, datetime], int],
) -> list[EndedShare]:
    """Return the shares whose time is over with these entries: those that leave, and those that become others.

    `idle_s` returns for how long a pod's share of a card was idle.
    """
    if now is None or card.ended is None:
        return []
    leaving, so_far_ms = [*vacated], wasted_until(card, now)
    for entry in entries:
        present = card.listed.get(entry.subject)
        if isinstance(entry, HandOver):
            heirs = dict.fromkeys(bequest.heir.uid for bequest in entry.bequests)
            leaving += [card.listed[uid] for uid in heirs if uid in card.listed]
        if isinstance(entry, HandOver | Remove) and entry.is_charged and present is not None:
            leaving.append(present)
    over = {
        holder.pod.uid: ended_share(holder, card.card, now, idle_s(holder.pod.uid, card.card.uuid, now), so_far_ms)
        for holder in leaving
    }
    known = {ended.key for ended in card.ended}
    found = (ended for ended in over.values() if ended is not None)
    return [ended for ended in found if ended.key not in known]


def _entering_tests(card: CardEntry, entries: Sequence[Entry]) -> list[Json]:
    """Return the test that no share has been listed as ended since, if these entries enter a holder."""
    enters = any(isinstance(entry, Add) and entry.subject not in card.listed for entry in entries)
    if not enters or card.account_revision is None:
        return []
    return [{"op": "test", "path": ACCOUNT_REVISION, "value": card.account_revision}]


def _ended_patch(card: CardEntry, entries: Sequence[Entry], over: Sequence[EndedShare]) -> list[Json]:
    """Return the operations that list what is over, and take off what is in the records.

    A list that is full takes no more: then the time of a share is lost, rather than the card.
    """
    operations: list[Json] = []
    for place in reversed(_settled(card, entries)):
        path = f"/status/ended/{place}"
        operations += [{"op": "test", "path": f"{path}/key", "value": (card.ended or ())[place].key}]
        operations += [{"op": "remove", "path": path}]
    listed = over[: room_for_ended(card, entries)]
    operations += [{"op": "add", "path": "/status/ended/-", "value": ended_json(each)} for each in listed]
    if listed:
        operations.append({"op": "add", "path": ACCOUNT_REVISION, "value": card.resource_version})
    return operations


def room_for_ended(card: CardEntry, entries: Sequence[Entry]) -> int:
    """Return how many more shares that are over a card can list after these entries."""
    return MAX_ENDED - len(card.ended or ()) + len(_settled(card, entries))


def _settled(card: CardEntry, entries: Sequence[Entry]) -> list[int]:
    """Return the places, in the card's list of what is over, of what is in the records."""
    keys = frozenset[str]().union(*(entry.keys for entry in entries if isinstance(entry, Settle)))
    return [place for place, ended in enumerate(card.ended or ()) if ended.key in keys]


def _removals(entries: Sequence[Entry]) -> dict[str, Holder | None]:
    """Return the UIDs of the pods that leave, and the only holder of each that may be removed; None: whichever."""
    removals: dict[str, Holder | None] = {}
    for entry in entries:
        if isinstance(entry, Remove):
            removals[entry.pod_uid] = entry.only
        elif isinstance(entry, HandOver):
            removals[entry.subject] = entry.holder
    return removals


def _bequeath(
    entry: HandOver, bequest: Bequest, holders: dict[str, Holder], places: dict[str, int], so_far_ms: int
) -> list[Json]:
    """Return the patch operations that transfer the share.

    The same patch removes the previous holder, so totals never grow.
    """
    uid = bequest.heir.uid
    present = holders.get(uid)
    after = holders[uid] = _begun(entry.inherited(bequest, holders[entry.subject], present), present, so_far_ms)
    if present is None:
        places[uid] = len(places)  # behind all others: it may inherit once more
        return [{"op": "add", "path": "/status/holders/-", "value": holder_json(after)}]
    place = places[uid]
    replaced = {"op": "replace", "path": f"/status/holders/{place}", "value": holder_json(after)}
    return [*_tests(place, present), replaced]


def _conflicts_patch(card: CardEntry, entries: Sequence[Entry]) -> list[Json]:
    return _list_patch(
        "conflicts", list(map(misfit_json, card.misfits)), list(map(misfit_json, _misfits(card, entries)))
    )


def _claims_patch(card: CardEntry, entries: Sequence[Entry]) -> list[Json]:
    """Return the operations that write the claims.

    A claim ends when its pod becomes a holder, and nothing in the list would tell of that to a new one that arrives
    late: it is only taken by the card as it was read.
    """
    before = card.claims.values()
    operations = _list_patch("claims", list(map(claim_json, before)), list(map(claim_json, _claims(card, entries))))
    if any(isinstance(entry, SetClaim) and entry.claim for entry in entries):
        return [{"op": "test", "path": "/metadata/resourceVersion", "value": str(card.resource_version)}, *operations]
    return operations


def _list_patch(name: str, before: list[Json], after: list[Json]) -> list[Json]:
    """Return the operations that write a list, if it changes; it must still be the one that was read."""
    if before == after:
        return []
    path = f"/status/{name}"
    test = [{"op": "test", "path": path, "value": before}] if before else []
    return [*test, _status(name, after)]


def _misfits(card: CardEntry, entries: Sequence[Entry]) -> tuple[Misfit, ...]:
    """Return the card's conflicts after these entries."""
    misfits = {misfit.pod.uid: misfit for misfit in card.misfits}
    for entry in entries:
        if isinstance(entry, ShowConflict):
            misfits.pop(entry.pod_uid, None)
            if entry.misfit is not None:
                misfits[entry.pod_uid] = entry.misfit
    return tuple(misfits.values())


def _claims(card: CardEntry, entries: Sequence[Entry]) -> tuple[Claim, ...]:
    """Return the card's claims after these entries. A pod that becomes a holder has no claim any more."""
    claims = dict(card.claims)
    for entry in entries:
        if isinstance(entry, Add | SetClaim):
            claims.pop(entry.subject, None)
        if isinstance(entry, SetClaim) and entry.claim is not None:
            claims[entry.pod_uid] = entry.claim
    return tuple(claims.values())


def _opening_patch(card: CardEntry, entries: Sequence[Entry]) -> list[Json]:
    """Return the first status of a card: the holders that memory has.

    It would replace a status that another client has written meanwhile, so the object must be the one that was read.
    """
    leaving = _leaving(card, entries)
    change_of = {entry.subject: entry for entry in entries if isinstance(entry, Add | Change)}
    holders = [
        change_of[uid].changed(holder) if uid in change_of else holder
        for uid, holder in card.listed.items()
        if uid not in leaving
    ]
    phase, reason = CardPhase.PENDING.value, ""
    for entry in entries:
        if isinstance(entry, Describe):
            phase, reason = entry.phase, entry.reason
    status: Json = {
        "phase": phase,
        "reason": reason,
        "used": used_json(holders),
        "pods": pods_column(holders),
        "holders": [holder_json(holder) for holder in holders],
        "accountRevision": card.resource_version,
    }
    if card.ended:
        status["ended"] = [ended_json(each) for each in card.ended]
    if card.misfits:
        status["conflicts"] = [misfit_json(misfit) for misfit in card.misfits]
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": str(card.resource_version)},
        {"op": "add", "path": "/status", "value": status},
    ]


def _tests(place: int, holder: Holder) -> list[Json]:
    """Return tests that make a patch fail unless this holder is at this place, of this attempt and in this state."""
    return [*_tests_of_attempt(place, holder), _test(place, "state", holder.state.value)]


def _tests_of_attempt(place: int, holder: Holder) -> list[Json]:
    """Return tests that make a patch fail unless this attempt of the holder is at this place: its time is charged."""
    tests = [_test(place, "podUID", holder.pod.uid)]
    if holder.attempt:  # else it was written by hand
        tests.append(_test(place, "attempt", holder.attempt))
    return tests


def _test(place: int, name: str, value: str) -> Json:
    return {"op": "test", "path": f"/status/holders/{place}/{name}", "value": value}


def _edit(place: int, old: Holder, new: Holder) -> list[Json]:
    """Return operations that change state, deadline, attempt, seat and the containers' claims, where they differ."""
    path = f"/status/holders/{place}"
    operations = _tests(place, old)
    if new.attempt != old.attempt:
        operations.append({"op": "add", "path": f"{path}/attempt", "value": new.attempt})
    if new.share != old.share:
        operations.append({"op": "replace", "path": f"{path}/containers", "value": holder_json(new)["containers"]})
    if new.state is not old.state:
        operations.append({"op": "replace", "path": f"{path}/state", "value": new.state.value})
    if new.seat is not None and new.seat != old.seat:
        operations.append({"op": "add", "path": f"{path}/seat", "value": seat_json(new.seat)})
    if new.since and new.since != old.since:
        charge = charged_json(new).items()
        operations += [{"op": "add", "path": f"{path}/{name}", "value": value} for name, value in charge]
    if new.deadline and new.deadline != old.deadline:
        operations.append({"op": "add", "path": f"{path}/deadline", "value": new.deadline})
    elif old.deadline and not new.deadline:
        operations.append({"op": "remove", "path": f"{path}/deadline"})
    return operations


def _status(field_name: str, value: object) -> Json:
    return {"op": "add", "path": f"/status/{field_name}", "value": value}


def adds_something(entry: Entry) -> bool:
    """Return whether an entry needs room on the card, and can't be had when the card is gone."""
    match entry:
        case Add():
            return True
        case ShowConflict():
            return entry.misfit is not None
        case SetClaim():
            return entry.claim is not None
    return False
