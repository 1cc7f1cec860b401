"""Writes to ResourceClaims: their cards and the pods that may use them, at Bind and when shares end.

The order at Bind is: the shares into the ledger, the allocation into the claim, the Binding. The ledger is the
authority, so a claim that says less than it is harmless, and one that says more gets nothing on the node.

Each change of a claim's status names the version that was read: two writers can't both be right. Hundreds of pods can
join one claim at once. Their changes are made one after the other, each from the result of the one before: side by
side, each would be refused for every other one, and all together for as long as they go on.

A claim that was made for a pod ends with it. One that pods share is handed over to another pod that uses it, or, if
there is none, its allocation is removed: that is written first, by the version of the claim in which no other pod used
it. So a pod that joins at the same time is refused, and never runs on cards that no pod holds for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from gpuledger.formats.annotations import RELEASED_ANNOTATION
from gpuledger.formats.kubernetes.pod import bound_node, is_finished, later_version, pod_identity
from gpuledger.formats.resource_claims.claims import PROTECTION, Claim, claim_names, read_claim
from gpuledger.formats.resource_claims.slices import (
    MOST_CONSUMERS,
    allocation,
    consumer,
    device_name,
    devices_in,
    devices_of,
    is_allocated_as,
    with_consumer,
    without_consumers,
)
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.errors import BindFailed, Conflict, GpuledgerError, Invalid, NotFound, ShareRefused
from gpuledger.model.json_object import Json
from gpuledger.model.request import JoinedClaim, PodClaim, PodRequest
from gpuledger.model.share import ClaimRef, Holder, HolderState, Placement, Pod, stamped
from gpuledger.workflows.context import Context
from gpuledger.workflows.journal.journal import CardReader
from gpuledger.workflows.namespace_allowances import SelectorAccounts
from gpuledger.workflows.resource_claims.claims import ClaimBook
from gpuledger.workflows.tasks import gather_all, pause_s, sleep_backoff

Change = Callable[[Mapping[str, Any]], Json | None]
"""From a claim's status to the fields of it that are to be written, None removes one; None instead: all is as it is to
be. Asked again about what was written, until there is nothing to change."""

ATTEMPTS = 8
"""Writes of one claim that others have been quicker than, with pauses: kube-controller-manager writes three times in a
row when the last pod that uses a claim has ended."""


class _Line:
    """The changes of one claim that are to be made."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.written: Json | None = None
        """The claim as the last of them has left it; None if that is not known."""


class ClaimStatusWriter:
    """Writes claims' statuses. A process has one of them: two would not take turns."""

    def __init__(self, store: KubeStore, book: ClaimBook | None = None) -> None:
        """Make one; `book` is what memory has of claims, and spares a read."""
        self._store, self._book = store, book
        self._lines: WeakValueDictionary[str, _Line] = WeakValueDictionary()  # by claims' UIDs
        self._closing = Counter[str]()  # claim UID -> how many pods are leaving it

    @contextmanager
    def closing(self, claim_uid: str) -> Iterator[None]:
        """Have pods join the claim later: those that may use it are about to be taken out of it."""
        self._closing[claim_uid] += 1
        try:
            yield
        finally:
            self._closing[claim_uid] -= 1
            self._closing += Counter()  # which forgets those at zero

    def is_closing(self, claim_uid: str) -> bool:
        """Return whether pods have to join the claim later."""
        return claim_uid in self._closing

    async def change(
        self, namespace: str, name: str, uid: str, change: Change, *, protected: bool = False, is_new: bool = False
    ) -> None:
        """Change a claim's status, as often as it takes.

        With `protected`, an allocation is written after the finalizer that protects it. With `is_new`, a claim that
        has no status as far as memory knows is not read first: what is older than that can't be written over.
        Raises NotFound if the claim is gone or another one by now, ShareRefused if it changes all the time, BindFailed
        if it can't be protected, and what `change` raises.
        """
        line = self._lines.setdefault(uid, _Line())
        async with line.turn:
            before, line.written = line.written, None
            if before is None or not _changes(before, change):  # others may have written: a write finds that out
                before = self._known(namespace, name, uid) if is_new else None
            line.written = await self._change(before, namespace, name, uid, change, protected)

    async def _change(
        self, found: Json | None, namespace: str, name: str, uid: str, change: Change, protected: bool
    ) -> Json | None:
        """Do so, beginning with what is known of the claim; return the claim as it is now."""
        for attempt in range(ATTEMPTS):
            if found is None:
                found = await self._read(namespace, name)
            if found["metadata"]["uid"] != uid:
                raise NotFound(f"ResourceClaim {namespace}/{name} has been replaced by another of the same name")
            fields = change(found.get("status") or {})
            if fields is None:
                return found
            try:
                if protected and fields.get("allocation") and PROTECTION not in _finalizers(found):
                    found = await self._protect(found)
                found = await self._store.set_claim_status(found, fields)
            except (Conflict, NotFound) as error:  # whether it is gone is seen when it is read
                found = None
                await sleep_backoff(attempt, error)
                continue
            if self._book is not None:
                self._book.learn(read_claim(found))
        raise ShareRefused(f"ResourceClaim {namespace}/{name} changes all the time")

    async def _read(self, namespace: str, name: str) -> Json:
        try:
            return await self._store.resource_claim(namespace, name)
        except NotFound as error:
            raise NotFound(f"ResourceClaim {namespace}/{name} has been deleted", error.status) from error

    async def _protect(self, claim: Json) -> Json:
        """Return the claim with the finalizer.

        An API server compares the bytes of a configuration with the stored ones, and shows and reads JSON only as Go
        writes it: a claim that was written otherwise is one that no JSON can change.
        """
        try:
            return await self._store.protect_claim(claim, PROTECTION)
        except Invalid as error:
            name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
            raise BindFailed(
                f"ResourceClaim {name} can't be protected from deletion while pods use it, because the API server "
                "takes no change of a claim whose configuration was sent with blanks or with one of <>&: create it "
                "anew with kubectl"
            ) from error

    def _known(self, namespace: str, name: str, uid: str) -> Json | None:
        """Return a claim of whose status nothing has to be known: it has none yet."""
        stored = self._book.stored(namespace, name) if self._book is not None else None
        if stored is None or stored.uid != uid or stored.is_allocated or stored.reserved_for:
            return None
        if stored.finalizers is None:
            return None
        metadata = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": stored.resource_version}
        return {"metadata": {**metadata, "finalizers": list(stored.finalizers)}}


def _changes(claim: Json, change: Change) -> bool:
    try:
        return change(claim.get("status") or {}) is not None
    except GpuledgerError:
        return False


def _finalizers(claim: Json) -> Sequence[str]:
    return claim["metadata"].get("finalizers") or ()


MADE_WITHIN_S = 5.0
"""How long a Bind waits for kube-controller-manager to make a claim from its template; the next one waits again."""


class GivenOtherCards(BindFailed):
    """A claim gives its pod other cards than those that were to be written: by `allocation`, as it is stored."""

    def __init__(self, claim: PodClaim, allocation: Json) -> None:
        super().__init__(f"claim {claim.name}: another operator gives ResourceClaim {claim.object_name} other cards")
        self.allocation = allocation


async def write_allocation(
    status: ClaimStatusWriter, pod: Pod, claim: PodClaim, wanted: Json, replaceable: Callable[[Json], bool]
) -> None:
    """Have a claim's status give its pod these cards. Idempotent.

    Raises BindFailed if other pods use the claim, GivenOtherCards if it gives the pod others that are not
    `replaceable`; ApiError.
    """

    def change(status: Mapping[str, Any]) -> Json | None:
        present = status.get("allocation")
        consumers = {each.get("uid") for each in status.get("reservedFor") or ()}
        if present and is_allocated_as(present, wanted) and pod.uid in consumers:
            return None
        if consumers - {pod.uid}:
            raise BindFailed(f"claim {claim.name}: ResourceClaim {claim.object_name} is in use by another pod")
        if present and not is_allocated_as(present, wanted):
            if not replaceable(present):
                raise GivenOtherCards(claim, present)
            return {"allocation": None, "reservedFor": None}  # no allocation is changed into another one
        return {"allocation": wanted, "reservedFor": [consumer(pod)]}

    await status.change(pod.namespace, claim.object_name, claim.uid, change, protected=claim.shared, is_new=True)


class ClaimWriter:
    """Allocates claims to the cards that their pods hold."""

    def __init__(
        self, book: ClaimBook, ledger: Ledger, status: ClaimStatusWriter, reader: CardReader, clock: Clock
    ) -> None:
        self._book, self._ledger, self._status, self._reader, self._clock = book, ledger, status, reader, clock

    async def know_claims_of(self, pod: Mapping[str, Any]) -> None:
        """Know what a pod's claims are that kube-scheduler asks about.

        It may have seen that a claim was made for the pod before our watch shows the claim. Raises ApiError.
        """
        shown = dict(pod)
        if self._book.waiting(shown["metadata"]["uid"]) is None:  # the watch has not shown the pod either
            self._book.observe_pending(shown)
        await self._book.know_claims_of(shown)

    async def identified(
        self, pod: Pod, version: str, request: PodRequest, placement: Placement
    ) -> tuple[str, PodRequest, Placement]:
        """Return the pod's resourceVersion, its request and its shares with the claims' UIDs in them.

        Waits for claims that are to be made from templates. Raises BindFailed if that takes too long, or if a claim is
        another one than what its cards were chosen for.
        """
        if request.joined_node not in ("", placement.node_name):
            raise BindFailed(f"claim {request.joined[0].name} is allocated on node {request.joined_node}")
        deadline_s = self._clock.now_s() + MADE_WITHIN_S
        claims = [await self._identified(pod, claim, deadline_s) for claim in request.claims]
        waiting = self._book.waiting(pod.uid)
        if waiting is not None:  # kube-scheduler's watch can be ahead of ours
            version = later_version(version, waiting.resource_version)
        shares = tuple(stamped(share, claims) for share in placement.shares)
        return version, replace(request, claims=tuple(claims)), replace(placement, shares=shares)

    async def _identified(self, pod: Pod, claim: PodClaim, deadline_s: float) -> PodClaim:
        while True:
            waiting = self._book.waiting(pod.uid)
            name = claim.object_name or (waiting.names.get(claim.name, "") if waiting else "")
            stored = self._book.stored(pod.namespace, name) if name else None
            if stored is not None:
                _check(claim, stored)
                return replace(claim, object_name=name, uid=stored.uid)
            left_s = deadline_s - self._clock.now_s()
            if left_s <= 0:
                raise BindFailed(f"claim {claim.name}: its ResourceClaim has not been created yet")
            try:
                async with asyncio.timeout(left_s):
                    await self._book.news.of(pod.uid)
            except TimeoutError:
                continue

    async def allocate(self, pod: Pod, request: PodRequest, placement: Placement) -> None:
        """Have the API server know which cards the pod's claims have, and that the pod may use them. Idempotent.

        Raises BindFailed if a claim has changed, or is another scheduler's; ApiError.
        """
        own = [self._allocate(pod, claim, placement) for claim in request.claims]
        await gather_all([*own, *(self._join(pod, claim) for claim in request.joined)])

    async def _allocate(self, pod: Pod, claim: PodClaim, placement: Placement) -> None:
        cards = {entry.card.uuid: entry.card for entry in self._ledger.entries_of_node(placement.node_name)}
        wanted = allocation(claim, placement.node_name, placement.shares, cards, self._book)
        try:
            await write_allocation(self._status, pod, claim, wanted, lambda _: False)
        except GivenOtherCards as given:
            left = given.allocation
            if await self._has_any(pod, claim, devices_in(left) - devices_in(wanted)):
                raise
            await write_allocation(self._status, pod, claim, wanted, lambda present: present == left)

    async def _has_any(self, pod: Pod, claim: PodClaim, devices: Collection[tuple[str, str]]) -> bool:
        """Return whether the API server has a share of the pod, by this claim, of one of these devices of nodes.

        Shares are entered before they are written into a claim. So if there is one, another operator is binding the pod
        just now, or gives the share back; if there is none, no pod relies on the claim's allocation.
        """
        entries = [each for node in {node for node, _ in devices} for each in self._ledger.entries_of_node(node)]
        for entry in entries:
            if (entry.card.node_name, device_name(entry.card.uuid)) not in devices:
                continue
            with suppress(NotFound):
                holders = (await self._reader.read(entry)).holders or ()
                if any(holder.pod.uid == pod.uid and holder.share.is_by_claim(claim.uid) for holder in holders):
                    return True
        return False

    async def _join(self, pod: Pod, claim: JoinedClaim) -> None:
        """Add the pod to a claim's status.

        Raises BindFailed while the last pods leave the claim: they take out every pod that joins them, again and again.
        """

        def change(status: Mapping[str, Any]) -> Json | None:
            if not status.get("allocation"):
                raise BindFailed(f"claim {claim.name}: the pods that had ResourceClaim {claim.object_name} have ended")
            if self._status.is_closing(claim.uid) or self._is_being_left(claim):
                raise BindFailed(f"claim {claim.name}: the pod that had ResourceClaim {claim.object_name} is ending")
            after = with_consumer(status, pod)["reservedFor"]
            if len(after) > MOST_CONSUMERS:
                raise BindFailed(f"claim {claim.name}: {MOST_CONSUMERS} pods use ResourceClaim {claim.object_name}")
            return None if after == status.get("reservedFor") else {"reservedFor": after}

        await self._status.change(pod.namespace, claim.object_name, claim.uid, change)

    def _is_being_left(self, claim: JoinedClaim) -> bool:
        """Return whether all shares by a claim are being taken back."""
        entries = self._ledger.entries_of_node(claim.node_name)
        states = {
            holder.state
            for entry in entries
            for holder in entry.holders.values()
            if holder.share.is_by_claim(claim.uid)
        }
        return states == {HolderState.RELEASING}


def _check(claim: PodClaim, stored: Claim) -> None:
    if stored.spec != claim.wishes:
        raise BindFailed(f"claim {claim.name}: its ResourceClaim asks for something else than its template did before")
    if stored.is_being_deleted:
        raise BindFailed(f"claim {claim.name}: ResourceClaim {stored.name} is being deleted")


@dataclass(frozen=True, slots=True)
class Heir:
    """Another pod that uses a claim, and gets its cards."""

    pod: Pod
    claim: ClaimRef
    claim_name: str
    """The heir's name for the claim."""
    devices: frozenset[str] = frozenset()
    """Names of the claim's devices. The claim has lost any other that the leaving pod has: the heir may have been given
    others by now, of its own."""

    def inherits(self, uuid: str, holders: Sequence[Holder]) -> bool:
        """Return whether the heir, with these holders, gets the leaving pod's part of a card by the claim.

        It may have it already: handed over before a crash, or entered for itself when the claim was free for a moment.
        """
        has_it = any(holder.share.uuid == uuid and holder.share.is_by_claim(self.claim.uid) for holder in holders)
        return device_name(uuid) in self.devices and not has_it


def claims_of(holders: Sequence[Holder]) -> list[ClaimRef]:
    """Return the claims by which a pod has its shares, each once."""
    parts = (part.claim for holder in holders for part in holder.share.containers)
    return list(dict.fromkeys(claim for claim in parts if claim is not None))


class ClaimEnds:
    """Deallocates a pod's ResourceClaims, or hands them to the pods that still use them."""

    def __init__(self, store: KubeStore, ledger: Ledger, status: ClaimStatusWriter) -> None:
        self._store, self._ledger, self._status = store, ledger, status

    async def left_by(self, pod: Pod, holders: Sequence[Holder], was_bound: bool) -> dict[str, Heir]:
        """Take a pod out of its claims, before its shares leave the ledger. Idempotent.

        Returns the heirs, by the claim's UID. Claims made for a pod that has run are left to kube-controller-manager.
        Raises ApiError.
        """
        left = {claim: _left(holders, claim) for claim in claims_of(holders)}
        own = [claim for claim in left if not claim.shared and not was_bound]
        await gather_all([self._withdraw(pod.namespace, claim, left[claim], {pod.uid}) for claim in own])
        heirs = [await self._heir(pod, claim, devices) for claim, devices in left.items() if claim.shared]
        return {heir.claim.uid: heir for heir in heirs if heir is not None}

    async def _withdraw(
        self, namespace: str, claim: ClaimRef, left: AbstractSet[str], pod_uids: Collection[str]
    ) -> None:
        """Take pods out of a claim, all at once; if no other pod uses it, its allocation as well."""

        def change(status: Mapping[str, Any]) -> Json | None:
            if _is_anothers(status, left):
                return None
            consumers = {each.get("uid") for each in status.get("reservedFor") or ()}
            if consumers.isdisjoint(pod_uids) and (consumers or not status.get("allocation")):
                return None
            after = without_consumers(status, pod_uids)
            return {"reservedFor": after.get("reservedFor"), "allocation": after.get("allocation")}

        with suppress(NotFound):
            await self._status.change(namespace, claim.name, claim.uid, change)

    async def _heir(self, pod: Pod, claim: ClaimRef, left: AbstractSet[str]) -> Heir | None:
        for attempt in count():
            status = await self._allocated(pod.namespace, claim)
            if status is None or _is_anothers(status, left):
                return None
            others = [each for each in status.get("reservedFor") or () if each.get("uid") != pod.uid]
            heir = self._holding(others, claim) or await self._bound_or_none_left(pod, others, claim, left)
            if heir is not None:
                return replace(heir, devices=devices_of(status))
            if attempt:  # another operator's pods join meanwhile
                await asyncio.sleep(pause_s(attempt))
        return None

    async def _allocated(self, namespace: str, claim: ClaimRef) -> Json | None:
        """Return the status of a claim that is allocated, None if it is not, or is gone."""
        try:
            found = await self._store.resource_claim(namespace, claim.name)
        except NotFound:
            return None
        status: Json = found.get("status") or {}
        return status if found["metadata"]["uid"] == claim.uid and status.get("allocation") else None

    async def _bound_or_none_left(
        self, leaving: Pod, others: Sequence[Json], claim: ClaimRef, left: AbstractSet[str]
    ) -> Heir | None:
        """Return one of the pods that has a node. If none has, they are fenced and all taken out of the claim.

        Who is fenced has to try again: where one has a node, the others can go on.
        """
        living = await self._living(leaving.namespace, others)
        if living and bound_node(living[-1]):
            return _heir_of(living[-1], claim)
        with self._status.closing(claim.uid):
            heir = await self._fenced(living, claim)
            if heir is None:  # kube-controller-manager would take them out as well, in a while
                uids = {leaving.uid, *(str(each.get("uid")) for each in others)}
                await self._withdraw(leaving.namespace, claim, left, uids)
            return heir

    def _holding(self, consumers: Sequence[Json], claim: ClaimRef) -> Heir | None:
        """Return a pod that has cards by a claim in the ledger: some were handed over before, or it was the first.

        One whose shares are being taken back as well is none: each of two would leave the claim to the other.
        """
        for each in consumers:
            for _, holder in self._ledger.holders.of(str(each.get("uid"))):
                for part in holder.share.containers:
                    if part.claim == claim and holder.state is not HolderState.RELEASING:
                        return Heir(holder.pod, claim, part.name.partition("/")[0])
        return None

    async def _living(self, namespace: str, consumers: Sequence[Json]) -> list[Json]:
        """Return the pods that may use a claim and have not ended, in order, up to the first that has a node."""
        living: list[Json] = []
        for each in consumers:
            with suppress(NotFound):
                found = await self._store.pod(namespace, str(each.get("name")))
                if found["metadata"]["uid"] == each.get("uid") and not is_finished(found):
                    living.append(found)
                    if bound_node(found):
                        break
        return living

    async def _fenced(self, pods: Sequence[Json], claim: ClaimRef) -> Heir | None:
        """Have no Binding of these pods accepted that is under way; return one that has been accepted before."""
        for each in pods:
            with suppress(NotFound):
                found = await self._store.annotate_pod(pod_identity(each), RELEASED_ANNOTATION, uuid4().hex)
                if bound_node(found):
                    return _heir_of(found, claim)
        return None


def _left(holders: Sequence[Holder], claim: ClaimRef) -> frozenset[str]:
    """Return the names of the devices that a pod with these holders has by a claim."""
    return frozenset(device_name(holder.share.uuid) for holder in holders if holder.share.is_by_claim(claim.uid))


def _is_anothers(status: Mapping[str, Any], left: AbstractSet[str]) -> bool:
    """Return whether another attempt to bind the pod allocated a claim: to none of the devices that are left.

    That one takes it back itself. It may have bound the pod by now.
    """
    return bool(status.get("allocation")) and left.isdisjoint(devices_of(status))


def _heir_of(pod: Json, claim: ClaimRef) -> Heir:
    names = (own for own, object_name, _ in claim_names(pod) if object_name == claim.name)
    return Heir(pod_identity(pod), claim, next(names, ""))


class ResourceClaims:
    """What is known of claims, and what writes them."""

    def __init__(self, context: Context) -> None:
        store, ledger, clock = context.store, context.ledger, context.clock
        self.book = ClaimBook(ledger, context.counts, store, context.settings.all_drivers_scheduler_name)
        self.book.payer = SelectorAccounts(clock, context.events).of
        status = ClaimStatusWriter(store, self.book)
        self.writer = ClaimWriter(self.book, ledger, status, context.journal.reader, clock)
        self.ends = ClaimEnds(store, ledger, status)
        if context.settings.resource_claims:
            context.formats.claims = self.book
