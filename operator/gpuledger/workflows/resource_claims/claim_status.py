"""Changes of a ResourceClaim's status, each by the version that was read: two writers can't both be right.

Hundreds of pods can join one claim at once. Their changes are made one after the other, each from what the one before
has written: side by side, each would be refused for every other one, and all together for as long as they go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from gpuledger.formats.resource_claims.names import PROTECTION
from gpuledger.formats.resource_claims.objects import read_claim
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.errors import BindFailed, Conflict, GpuledgerError, Invalid, NotFound, ShareRefused
from gpuledger.workflows.resource_claims.claim_book import ClaimBook
from gpuledger.workflows.tasks.pauses import sleep_backoff

Json = dict[str, Any]
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
    """Writes claims' statuses. There is one of them in a process: who has another one waits for no turn."""

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
        """Tell whether pods have to join the claim later."""
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

        An API server compares the bytes of a configuration with those that are stored, and shows and reads JSON only
        in the way in which Go writes it: who wrote it otherwise has made a claim that no JSON can change.
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
