"""ResourceClaims, their templates and DeviceClasses as lists or files have them, at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpuledger.formats.resource_claims.objects import (
    Claim,
    ClaimSpec,
    DeviceClass,
    read_claim,
    read_class,
    read_template,
)
from gpuledger.model.card_filter import Payer

Json = Mapping[str, Any]
Name = tuple[str, str]  # namespace, name


class ListedClaims:
    """The objects that were read: see ClaimObjects."""

    def __init__(
        self,
        claims: Iterable[Json] = (),
        templates: Iterable[Json] = (),
        classes: Iterable[Json] = (),
        holders: Mapping[str, str] | None = None,
    ) -> None:
        """Make one; `holders` are the pods that the ledger has cards for by a claim: UID of the claim -> of the pod."""
        self.claims: dict[Name, Claim] = {}
        self._templates: dict[Name, ClaimSpec] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._holders = dict(holders or {})
        self.add(claims, templates, classes)

    def add(self, claims: Iterable[Json] = (), templates: Iterable[Json] = (), classes: Iterable[Json] = ()) -> None:
        """Read objects, as from a page of a list: none of them is kept."""
        self.claims |= {(each.namespace, each.name): each for each in map(read_claim, claims)}
        self._templates |= {_name(each): read_template(each) for each in templates}
        self._classes |= {each.name: each for each in map(read_class, classes)}

    def merged(self, others: ListedClaims) -> ListedClaims:
        """Return what both have, as of now; where both have one of a name, that of the others."""
        found = ListedClaims()
        found.claims = {**self.claims, **others.claims}
        found._templates = {**self._templates, **others._templates}
        found._classes = {**self._classes, **others._classes}
        found._holders = {**self._holders, **others._holders}
        return found

    def claim(self, namespace: str, name: str) -> Claim | None:
        """See ClaimObjects."""
        found = self.claims.get((namespace, name))
        if found is not None:
            found.spec.check(f"ResourceClaim {name}")
        return found

    def template(self, namespace: str, name: str) -> ClaimSpec | None:
        """See ClaimObjects."""
        found = self._templates.get((namespace, name))
        if found is not None:
            found.check(f"ResourceClaimTemplate {name}")
        return found

    def device_class(self, name: str) -> DeviceClass | None:
        """See ClaimObjects."""
        return self._classes.get(name)

    def serves_other_drivers(self, scheduler_name: str) -> bool:
        """See ClaimObjects. Who only reads passes over the claims of other drivers, whoever serves them."""
        return True

    def holder_of(self, claim: Claim) -> str:
        """See ClaimObjects."""
        return self._holders.get(claim.uid, "")

    def payer(self, namespace: str) -> Payer | None:
        """See ClaimObjects."""

    def take(self, pod_uid: str, namespace: str, name: str, node_name: str) -> None:
        """Note who holds a claim's cards by now, and where."""
        claim = self.claims[namespace, name]
        self.claims[namespace, name] = replace(claim, node_name=node_name)
        self._holders[claim.uid] = pod_uid


def _name(obj: Json) -> Name:
    return str(obj["metadata"].get("namespace") or ""), str(obj["metadata"]["name"])
