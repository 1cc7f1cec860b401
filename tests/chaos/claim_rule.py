"""A bound pod's claims are allocated to it, with the cards that the ledger has for them; and no card twice by a claim.

Checked on every change of a pod, a card or a claim, in etcd's order. Shares of pods that were never bound do not count:
they may be given back. Nor do those that are being given back: another pod may have got the claim anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from chaos.arithmetic import has_ended, holders_of, is_bound
from chaos.claims import claim_names, claim_uids, device_of, devices_of, reserved_for
from chaos.history import Change

Json = dict[str, Any]


class ClaimRule:
    """Takes all changes since the cluster was empty; `checks` are the Bindings of pods with claims that it has seen."""

    def __init__(self) -> None:
        self.checks = 0
        self._claims: dict[str, Json] = {}  # namespace/name -> claim
        self._cards: dict[str, Json] = {}  # UUID -> card
        self._bound: set[str] = set()  # UIDs of the pods that have or had a node

    def take(self, change: Change) -> str:
        """Return what is wrong with a change; empty: nothing."""
        if change.kind == "claim":
            self._note(self._claims, change.key, change.now)
        elif change.kind == "card":
            found = change.now or change.before or {}
            self._note(self._cards, found["spec"]["uuid"], change.now)
            return self._twice(found["spec"]["uuid"])
        elif change.kind == "pod" and change.now is not None and is_bound(change.now):
            uid = change.now["metadata"]["uid"]
            if uid not in self._bound:
                self._bound.add(uid)
                return "" if change.before is None else "; ".join(self._problems(change.now))
        return ""

    @staticmethod
    def _note(table: dict[str, Json], key: str, now: Json | None) -> None:
        if now is None:
            table.pop(key, None)
        else:
            table[key] = now

    def _twice(self, uuid: str) -> str:
        """Return which claim two pods have on a card."""
        holders = self._holders(uuid)
        found = Counter(uid for holder in holders for uid in claim_uids(holder))
        twice = [uid for uid, number in found.items() if number > 1]
        names = [holder["pod"] for holder in holders if claim_uids(holder) & set(twice)]
        return f"card {uuid}: claim {twice[0]} is given to {names}" if twice else ""

    def _holders(self, uuid: str) -> list[Json]:
        holders = holders_of(self._cards.get(uuid, {}))
        return [each for each in holders if each["podUID"] in self._bound and each["state"] == "allocated"]

    def _problems(self, pod: Json) -> Iterator[str]:
        """Yield what is wrong with the claims of a pod that has just been bound."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        if not pod["spec"].get("resourceClaims") or has_ended(pod):
            return
        self.checks += 1
        for name, object_name, _ in claim_names(pod):
            claim = self._claims.get(f"{namespace}/{object_name}")
            if claim is None:
                yield f"{pod['metadata']['name']} is bound, and its claim {name} is not there"
                continue
            if uid not in reserved_for(claim):
                yield f"{pod['metadata']['name']} is bound, and its claim {object_name} is not reserved for it"
            given, held = sorted(devices_of(claim)), sorted(self._held(claim["metadata"]["uid"], uid))
            # Of two operators that bind one pod at once, each may have entered cards: at rest, none is there besides.
            if not given or not {*given} <= {*held}:
                yield f"claim {object_name} has {given}, and the ledger has {held} for it"

    def _held(self, claim_uid: str, pod_uid: str) -> Iterator[str]:
        """Yield the devices that pods have by a claim.

        What another operator is taking back from a pod that is bound in this moment counts: that one leaves it then. So
        does what a pod leaves that has ended while this one joined its claim: this one inherits it.
        """
        for uuid, card in self._cards.items():
            theirs = [each for each in holders_of(card) if each["podUID"] in {pod_uid, *self._bound}]
            if any(claim_uid in claim_uids(holder) for holder in theirs):
                yield device_of(uuid)


def unsettled_claims(
    claims: Mapping[str, Json], cards: Mapping[str, Json], pods: Mapping[str, Json]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield what is not in order of claims at rest: rule, text, and UIDs of pods. By key, UUID and UID."""
    users: dict[str, set[str]] = {}  # key of a claim -> UIDs of the pods that live and use it
    for uid, pod in pods.items():
        for _, name, _ in claim_names(pod):
            if not has_ended(pod):
                users.setdefault(f"{pod['metadata']['namespace']}/{name}", set()).add(uid)
    for key, claim in claims.items():
        living = {uid for uid in users.get(key, ()) if is_bound(pods[uid])}
        given, reserved = devices_of(claim), reserved_for(claim)
        held = [
            device_of(uuid)
            for uuid, card in cards.items()
            for holder in holders_of(card)
            if claim["metadata"]["uid"] in claim_uids(holder)
        ]
        if sorted(given) != sorted(held):
            yield "a claim is not as the ledger has it", f"{key} has {given}, the ledger {held}", tuple(living)
        if given and not living:
            yield "a claim keeps cards that nobody uses", f"{key}: {given}", ()
        if reserved != living:
            text = f"{key} is reserved for {sorted(reserved)}, and {sorted(living)} use it"
            yield "a claim is reserved for others than use it", text, tuple(reserved | living)
        if claim["metadata"].get("deletionTimestamp") and not users.get(key):
            yield "a claim that nobody uses can not be deleted", f"{key}: {claim['metadata'].get('finalizers')}", ()
