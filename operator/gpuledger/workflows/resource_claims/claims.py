"""ResourceClaims, their templates and DeviceClasses in memory, from the first pod with a claim on.

Commands read them once and follow nothing. A lock says which pod is about to be the first that uses a claim: others
that name it wait, and join it then.

Users create as many as they like, each as long as etcd takes. Of a claim that no pod of ours names, only name and UID
stay for certain; beyond that the latest short ones do, as the next pod may name them. Claims that pods name stay, as
far as their namespace has room: only that much can get into requests, which hold it, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Protocol
from weakref import finalize

from gpuledger.formats.kubernetes.pod import is_finished, resource_version
from gpuledger.formats.resource_claims.cel import evaluation
from gpuledger.formats.resource_claims.claims import (
    DRIVER,
    Claim,
    ClaimSpec,
    DeviceClass,
    ListedClaims,
    has_claims,
    named_claims,
    read_claim,
    read_class,
    read_template,
)
from gpuledger.formats.resource_claims.slices import device_name
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Payer
from gpuledger.model.clock import Listeners
from gpuledger.model.errors import ApiError, BindInProgress, Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest, SeenClaim
from gpuledger.model.share import Pod, StoredCard
from gpuledger.workflows.context import Follower
from gpuledger.workflows.kinds import CLAIM_OBJECTS, Subscription
from gpuledger.workflows.list_and_watch import skipping_bad_objects
from gpuledger.workflows.reporting import Counts
from gpuledger.workflows.tasks import gather_all

NAMESPACE_BYTES = 2 * 1024 * 1024
"""As JSON, of all different specs of one namespace that are in memory: some 6,000 ordinary ones. As Python objects they
can be four times as long."""

SPARE_BYTES = 4 * 1024 * 1024
"""The same of all objects that no pod names."""

_NO_ROOM = ClaimSpec(
    (),
    refused=f"what the claims of its namespace ask for has more than {NAMESPACE_BYTES:,} bytes as JSON, without "
    "repetitions: use templates, write shorter claims, or wait until pods with others have ended",
)


class Kind(StrEnum):
    """The followed kinds, by their names in the API."""

    CLAIMS = "resourceclaims"
    TEMPLATES = "resourceclaimtemplates"
    CLASSES = "deviceclasses"


_WORDS = {Kind.CLAIMS: "ResourceClaim", Kind.TEMPLATES: "ResourceClaimTemplate"}

Name = tuple[str, str]  # namespace, name
Key = tuple[Kind, Name]


class SpecRoom:
    """Counts the different specs of each namespace for as long as anything holds them."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()  # namespace -> bytes of its specs
        self._counted: set[tuple[str, int]] = set()  # namespace, and identity of a spec

    def take(self, namespace: str, spec: ClaimSpec) -> bool:
        """Count a spec, once; return whether there is room for it."""
        key = namespace, id(spec)
        if key not in self._counted:
            if self._bytes[namespace] + spec.size_bytes > NAMESPACE_BYTES:
                return False
            self._counted.add(key)
            self._bytes[namespace] += spec.size_bytes
            finalize(spec, self._is_gone, key, spec.size_bytes).atexit = False
        return True

    def _is_gone(self, key: tuple[str, int], size_bytes: int) -> None:
        self._counted.remove(key)
        self._bytes[key[0]] -= size_bytes
        if not self._bytes[key[0]]:
            del self._bytes[key[0]]


class KeptObjects:
    """The objects, and which pods name them. DeviceClasses are an administrator's, and all stay."""

    def __init__(self) -> None:
        self._uids: dict[Kind, dict[Name, str]] = {kind: {} for kind in Kind}  # of all that there are
        self._objects: dict[Key, Any] = {}
        self._naming: dict[Key, set[str]] = {}  # claim or template -> UIDs of the pods that name it
        self._named: dict[str, frozenset[Key]] = {}  # pod UID -> what it names
        self._spare: dict[Key, int] = {}  # what no pod names -> about how many bytes, the oldest first
        self._spare_bytes = 0
        self._room = SpecRoom()
        self.to_read: dict[Key, None] = {}  # what pods name, and is not in memory, or has found no room
        self.has_to_read = asyncio.Event()  # while there is any

    def find(self, kind: Kind, name: Name) -> Any | None:
        """Return an object that is in memory."""
        return self._objects.get((kind, name))

    def asked(self, kind: Kind, name: Name) -> Any | None:
        """Return a claim or a template for a request. Raises BadInput if that can't have what it asks for."""
        found = self.find(kind, name)
        if found is not None:
            spec = _spec_of(found)
            if not self._has_room(name[0], spec):
                spec = _NO_ROOM
            spec.check(f"{_WORDS[kind]} {name[1]}")
        return found

    def is_there(self, key: Key) -> bool:
        """Return whether there is such an object, in memory or not."""
        return key[1] in self._uids[key[0]]

    def uids(self, kind: Kind) -> dict[Name, str]:
        """Return the UIDs of all objects of a kind."""
        return dict(self._uids[kind])

    def naming(self, kind: Kind, name: Name) -> AbstractSet[str]:
        """Return the UIDs of the pods that name an object."""
        return self._naming.get((kind, name), frozenset())

    def pods(self) -> AbstractSet[str]:
        """Return the UIDs of all pods that name any."""
        return self._named.keys()

    def put(self, kind: Kind, name: Name, uid: str, found: Any) -> bool:
        """Note an object as it is now; return whether it was not in memory."""
        key = kind, name
        is_new = key not in self._objects
        self._uids[kind][name] = uid
        self._objects[key] = found
        self._settle(key)
        return is_new

    def forget(self, kind: Kind, name: Name, uid: str) -> bool:
        """Record that an object is gone; return whether it was there: by now another one can have its name."""
        if self._uids[kind].get(name) != uid:
            return False
        del self._uids[kind][name]
        self._drop((kind, name))
        return True

    def names(self, pod_uid: str, keys: AbstractSet[Key] = frozenset()) -> None:
        """Note what a pod names from now on. What of it is there, and not in memory, is to be read."""
        before = self._named.pop(pod_uid, frozenset())
        if keys:
            self._named[pod_uid] = frozenset(keys)
        for key in keys - before:
            self._naming.setdefault(key, set()).add(pod_uid)
            self._settle(key)
        for key in before - keys:
            self._naming[key].remove(pod_uid)
            if not self._naming[key]:
                del self._naming[key]
                self._settle(key)
        for key in keys:
            found = self._objects.get(key)
            if self.is_there(key) if found is None else _spec_of(found) is _NO_ROOM:
                self.to_read[key] = None
                self.has_to_read.set()

    def _settle(self, key: Key) -> None:
        """Have an object stay for as long as it should, by who names it."""
        self._spare_bytes -= self._spare.pop(key, 0)
        found = self._objects.get(key)
        if found is None or key[0] is Kind.CLASSES:
            return
        spec = _spec_of(found)
        if key in self._naming:
            if not self._has_room(key[1][0], spec):
                self._objects[key] = replace(found, spec=_NO_ROOM) if isinstance(found, Claim) else _NO_ROOM
        elif spec.refused:
            self._drop(key)
        else:
            self._spare[key] = size_bytes = spec.size_bytes + _others_bytes(found)
            self._spare_bytes += size_bytes
            while self._spare_bytes > SPARE_BYTES:
                self._drop(next(iter(self._spare)))

    def _has_room(self, namespace: str, spec: ClaimSpec) -> bool:
        if self._room.take(namespace, spec):
            return True
        for key in [key for key in self._spare if key[1][0] == namespace]:
            self._drop(key)
        return self._room.take(namespace, spec)

    def _drop(self, key: Key) -> None:
        self._spare_bytes -= self._spare.pop(key, 0)
        self._objects.pop(key, None)


def _spec_of(found: Claim | ClaimSpec) -> ClaimSpec:
    return found.spec if isinstance(found, Claim) else found


def _others_bytes(found: Claim | ClaimSpec) -> int:
    """Return about how much memory an object takes beside its spec."""
    return 1_024 + (128 * len(found.reserved_for) if isinstance(found, Claim) else 0)


logger = logging.getLogger(__name__)


LISTS_WAIT_S = 5.0
"""How long the first question about a pod with claims waits for the lists: kube-scheduler asks again after that."""

READ_PAUSE_S = 1.0
"""After an object that could not be read."""


@dataclass(frozen=True, slots=True)
class WaitingClaims:
    """A pod that waits for a node, and brings claims."""

    resource_version: str
    names: dict[str, str]
    """Claim in the pod -> its ResourceClaim, empty if it is not made yet."""


_READERS: dict[Kind, Callable[[Json], Any]] = {
    Kind.CLAIMS: read_claim,
    Kind.TEMPLATES: read_template,
    Kind.CLASSES: read_class,
}


class NamedReads(Protocol):
    """The reads that this module needs."""

    async def claim_object(self, kind: str, namespace: str, name: str) -> Json:
        """Return a ResourceClaim or a template as it is now. Raises NotFound."""


class News:
    """Wakes those who wait for a key."""

    def __init__(self) -> None:
        self._awaited: dict[str, set[asyncio.Event]] = {}  # key -> an event for each who waits

    async def of(self, key: str) -> None:
        """Wait until there is news of a key."""
        event, here = asyncio.Event(), self._awaited.setdefault(key, set())
        here.add(event)
        try:
            await event.wait()
        finally:
            here.discard(event)
            if not here and self._awaited.get(key) is here:
                del self._awaited[key]

    def tell(self, key: str) -> None:
        """Wake all who wait for a key."""
        for event in self._awaited.pop(key, ()):
            event.set()


class ClaimBook(Follower):
    """All known claims; a cluster whose pods bring none is not asked about them."""

    def __init__(self, ledger: Ledger, counts: Counts, reads: NamedReads, all_drivers_scheduler_name: str = "") -> None:
        self._ledger, self._counts, self._reads = ledger, counts, reads
        self._all_drivers_scheduler_name = all_drivers_scheduler_name
        self._kept = KeptObjects()
        self._is_loaded = asyncio.Event()  # the library for selectors
        self.subscriptions = {
            kind: Subscription(
                CLAIM_OBJECTS[kind],
                partial(self.observe, kind),
                partial(self.listing, kind),
                wanted=self._is_loaded,
                can_not_be_read=partial(self.can_not_be_read, kind),
            )
            for kind in Kind
        }
        self._pods: dict[str, WaitingClaims] = {}  # UID of a pod without a node
        self.news = News()
        """Of a pod, by its UID: it, or a claim that was made for it, has changed."""
        self.payer: Callable[[str], Payer | None] = lambda _: None
        """See ClaimObjects."""
        self.wanted = asyncio.Event()
        """Set when a pod has brought a claim."""
        self.on_claim = Listeners[[Name]]()
        """Called when a claim has changed, or is gone."""
        self.on_waits_no_more = Listeners[[str]]()
        """Called with the UID of a pod that waited, and brings claims."""
        self.on_appeared = Listeners[[Kind, Name]]()
        """Called when an object is there that was not, or is in memory again."""
        self.changes = 0
        """How often a template or a class has changed, has come, or has gone."""

    # What formats ask, see ClaimObjects.

    def claim(self, namespace: str, name: str) -> Claim | None:
        """See ClaimObjects."""
        return self._kept.asked(Kind.CLAIMS, (namespace, name))

    def template(self, namespace: str, name: str) -> ClaimSpec | None:
        """See ClaimObjects."""
        return self._kept.asked(Kind.TEMPLATES, (namespace, name))

    def device_class(self, name: str) -> DeviceClass | None:
        """See ClaimObjects."""
        return self._kept.find(Kind.CLASSES, ("", name))

    def serves_other_drivers(self, scheduler_name: str) -> bool:
        """See ClaimObjects."""
        return bool(scheduler_name) and scheduler_name == self._all_drivers_scheduler_name

    def holder_of(self, claim: Claim) -> str:
        """See ClaimObjects. The holder of a claim's cards is among the pods that may use it."""
        held = ((uid, holder) for uid in claim.reserved_for for _, holder in self._ledger.holders.of(uid))
        return next((uid for uid, holder in held if holder.share.is_by_claim(claim.uid)), "")

    def shares_with_others(self, pod_uid: str) -> bool:
        """Return whether other pods would go on using the cards that a pod holds: it makes no room by leaving."""
        parts = (part.claim for _, holder in self._ledger.holders.of(pod_uid) for part in holder.share.containers)
        shared = (claim.name for claim in parts if claim is not None and claim.shared)
        holders = self._ledger.holders.of(pod_uid)
        stored = (self.stored(holders[0][1].pod.namespace, name) for name in shared)
        return any(claim is not None and {*claim.reserved_for} - {pod_uid} for claim in stored)

    def stored(self, namespace: str, name: str) -> Claim | None:
        """Return a ResourceClaim, whatever it asks for; None if it is not in memory."""
        return self._kept.find(Kind.CLAIMS, (namespace, name))

    # Pods.

    def observe_pending(self, pod: Json) -> None:
        """See Follower."""
        if not has_claims(pod):
            return
        self.wanted.set()
        uid = pod["metadata"]["uid"]
        given = named_claims(pod)
        self._pods[uid] = WaitingClaims(resource_version(pod), {name: object_name for name, object_name, _ in given})
        self._kept.names(uid, _keys_of(pod))
        self.news.tell(uid)

    def forget_pending(self, pod_uid: str) -> None:
        """See Follower."""
        if self._pods.pop(pod_uid, None) is not None:
            self._kept.names(pod_uid)
            self.news.tell(pod_uid)
            self.on_waits_no_more(pod_uid)

    def known_pending(self) -> AbstractSet[str]:
        """See Follower."""
        return self._pods.keys()

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """See Follower."""
        if has_claims(pod):
            self.wanted.set()
            self._kept.names(pod["metadata"]["uid"], frozenset() if is_finished(pod) else _keys_of(pod))

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """See Follower."""
        if pod_uid not in self._pods:
            self._kept.names(pod_uid)

    def known_bound(self) -> AbstractSet[str]:
        """See Follower."""
        return self._kept.pods() - self._pods.keys()

    def naming(self, kind: Kind, name: Name) -> AbstractSet[str]:
        """Return the UIDs of the pods that name a claim or a template."""
        return self._kept.naming(kind, name)

    def waiting(self, pod_uid: str) -> WaitingClaims | None:
        """Return a pending pod with claims as the watch has shown it."""
        return self._pods.get(pod_uid)

    # Objects.

    async def know_claims_of(self, pod: Json) -> None:
        """Know what the claims of a pod ask for, which need not exist yet. Raises ApiError."""
        if not has_claims(pod):
            return
        self.wanted.set()
        await self.lists_are_read()
        # What was made for a pod may be there before the watch shows it.
        made = {name for _, name, template in named_claims(pod) if template}
        unknown = [key for key in _keys_of(pod) if self._kept.find(*key) is None]
        await gather_all([self._read(key) for key in unknown if self._kept.is_there(key) or key[1][1] in made])

    async def read_what_pods_name(self) -> None:
        """Read what pods name and is not in memory, one after the other, until cancelled; and let objects be followed.

        The library that evaluates selectors is loaded first, in a thread: else nothing would be answered meanwhile.
        """
        await self.wanted.wait()
        await asyncio.to_thread(evaluation.load)
        self._is_loaded.set()
        while True:
            await self._kept.has_to_read.wait()
            for key in list(self._kept.to_read):
                try:
                    await self._read(key)
                except ApiError as error:
                    logger.info("%s %s/%s can't be read, retrying: %s", key[0], *key[1], error)
                    await asyncio.sleep(READ_PAUSE_S)
                else:
                    del self._kept.to_read[key]
            if not self._kept.to_read:
                self._kept.has_to_read.clear()

    async def _read(self, key: Key) -> None:
        kind, (namespace, name) = key
        with suppress(NotFound):  # its deletion is about to be seen
            self.observe(kind, await self._reads.claim_object(kind, namespace, name), gone=False)

    async def lists_are_read(self) -> None:
        """Wait until each kind was read, or could not be; for a while, and only if a pod has brought a claim."""
        if not self.wanted.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTS_WAIT_S):
                for each in self.subscriptions.values():
                    await each.listed.wait()

    def observe(self, kind: Kind, obj: Json, gone: bool) -> None:
        """Observe an object of a kind."""
        with skipping_bad_objects(kind.value, obj, self._counts):
            metadata = obj["metadata"]
            name = (metadata.get("namespace") or "", metadata["name"])
            if gone:
                self._forget(kind, name, metadata["uid"])
                return
            found = _READERS[kind](obj)
            is_new = self._kept.put(kind, name, metadata["uid"], found)
            if kind is Kind.CLAIMS:
                self.news.tell(found.owner)
                self.on_claim(name)
            else:
                self.changes += 1
            if is_new:
                self.on_appeared(kind, name)
            if self._kept.naming(kind, name):
                self._kept.asked(kind, name)  # what is refused of it is logged, and counted

    def learn(self, claim: Claim) -> None:
        """Note a claim as the API server has answered, before the watch shows it."""
        self._kept.put(Kind.CLAIMS, (claim.namespace, claim.name), claim.uid, claim)

    def listing(self, kind: Kind) -> Listed:
        """See `follow`."""
        before = {uid: name for name, uid in self._kept.uids(kind).items()}
        return forgetting(before, lambda uid: self._forget(kind, before[uid], uid))

    def can_not_be_read(self, kind: Kind, why: str) -> None:
        """Record that a kind can't be read."""
        if not self.subscriptions[kind].listed.is_set():
            logger.warning("%s can't be read: %s; pods that bring claims get no cards by them", kind, why)

    def _forget(self, kind: Kind, name: Name, uid: str) -> None:
        if not self._kept.forget(kind, name, uid):
            return
        if kind is Kind.CLAIMS:
            self.on_claim(name)
        else:
            self.changes += 1


def _keys_of(pod: Json) -> frozenset[Key]:
    """Return the claims and templates that a pod names."""
    namespace = str(pod["metadata"]["namespace"])
    named = [(kind, name) for _, *names in named_claims(pod) for kind, name in zip(_NAMED, names, strict=True)]
    return frozenset((kind, (namespace, name)) for kind, name in named if name)


_NAMED = (Kind.CLAIMS, Kind.TEMPLATES)


class ClaimReads(Protocol):
    """The reads that this module needs."""

    def claim_objects(self, kind: str) -> AsyncIterator[list[Json]]:
        """Yield all objects of a kind of resource.k8s.io/v1, page by page."""


async def read_claims(reads: ClaimReads, cards: Collection[StoredCard]) -> tuple[ListedClaims, list[SeenClaim]] | None:
    """Return the claims, and their parts that an audit compares; None where they are not served, or may not be read.

    `cards` are the ledger's, with the holders by claim. Raises ApiError.
    """
    found, seen = ListedClaims(holders=claim_holders(cards)), list[SeenClaim]()
    uuids = {device_name(stored.card.uuid): stored.card.uuid for stored in cards}
    try:
        async for page in reads.claim_objects(Kind.CLAIMS):
            found.add(claims=page)
            seen += [seen_claim(each, uuids) for each in page]
        async for page in reads.claim_objects(Kind.TEMPLATES):
            found.add(templates=page)
        async for page in reads.claim_objects(Kind.CLASSES):
            found.add(classes=page)
    except NotFound:
        return None
    except Denied as error:
        logger.warning("ResourceClaims are left out, for they can't be read: %s", error)
        return None
    return found, seen


def claim_holders(cards: Iterable[StoredCard]) -> dict[str, str]:
    """Return the holders of claims' cards in the ledger: UID of the claim -> UID of the pod."""
    holders = (holder for stored in cards for holder in stored.holders or ())
    return {
        part.claim.uid: holder.pod.uid
        for holder in holders
        for part in holder.share.containers
        if part.claim is not None
    }


def seen_claim(claim: Json, uuids: dict[str, str]) -> SeenClaim:
    """Return a claim's fields that an audit compares; `uuids` are the cards' by the names of their devices."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    ours = [each for each in results if each.get("driver") == DRIVER]
    consumers = status.get("reservedFor") or ()
    return SeenClaim(
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        node_name=str(ours[0].get("pool")) if ours else "",
        cards=frozenset((str(each["request"]), uuids.get(each["device"], each["device"])) for each in ours),
        consumers=tuple(str(each.get("uid")) for each in consumers),
        consumer_names=tuple(str(each.get("name")) for each in consumers),
    )


class ClaimAllocationLock:
    """Remembers for each claim that pods share, by its UID, for which pod cards were chosen last."""

    def __init__(self, is_under_way: Callable[[str], bool]) -> None:
        """Make one; `is_under_way` tells whether a pod has cards on hold, or is being bound."""
        self._is_under_way = is_under_way
        self._first: dict[str, str] = {}

    def check(self, pod: Pod, request: PodRequest) -> None:
        """Raise BindInProgress if a claim of the pod is just being allocated for another one."""
        for claim in request.claims:
            first = self._first.get(claim.uid, pod.uid) if claim.shared else pod.uid
            if first != pod.uid and self._is_under_way(first):
                raise BindInProgress(f"claim {claim.name} of pod {pod} is being allocated for another pod")

    def chosen(self, pod: Pod, request: PodRequest) -> None:
        """Record that cards were chosen for a pod."""
        if any(claim.shared for claim in request.claims):
            self._first = {uid: first for uid, first in self._first.items() if self._is_under_way(first)}
            self._first.update({claim.uid: pod.uid for claim in request.claims if claim.shared})
