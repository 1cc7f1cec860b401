"""Which ResourceClaims, templates and DeviceClasses are in memory.

Users create as many as they like, each as long as etcd takes. Of one that no pod of ours names, only name and UID stay
for certain; beyond that the latest short ones do, as the next pod may name them. What pods name stays, as far as its
namespace has room: only that much can get into requests, which hold it, too.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import StrEnum
from typing import Any

from gpuledger.formats.resource_claims.claims import Claim, ClaimSpec

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
    """What is followed, by the names of the API."""

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
            weakref.finalize(spec, self._is_gone, key, spec.size_bytes).atexit = False
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

    def names(self, pod_uid: str, keys: AbstractSet[Key]) -> list[Key]:
        """Note what a pod names from now on; return what of it is there, and should be read once more.

        That is what is not in memory, or has found no room.
        """
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
        return [key for key in keys if self._is_wanted(key)]

    def _is_wanted(self, key: Key) -> bool:
        found = self._objects.get(key)
        return self.is_there(key) if found is None else _spec_of(found) is _NO_ROOM

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
