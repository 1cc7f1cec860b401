"""ResourceClaims, their templates and DeviceClasses in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpuledger.formats.resource_claims.claims import DEVICE_CLASS, ListedClaims, read_claim, read_class, read_template
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json

CLAIM, TEMPLATE, CLASS = "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"

OURS: Json = {"metadata": {"name": DEVICE_CLASS}}
"""The class that comes with an installation."""


@dataclass(slots=True)
class ClaimFiles:
    """The objects that files hold."""

    found: dict[str, list[Json]] = field(default_factory=lambda: {CLAIM: [], TEMPLATE: [], CLASS: []})

    def takes(self, document: Mapping[str, Any], default_namespace: str) -> bool:
        """Take in an object; return whether it is one of these. Raises BadInput for one that can't be read."""
        kind = str(document.get("kind"))
        if kind not in self.found:
            return False
        metadata = dict(document["metadata"])
        if kind != CLASS:
            metadata.setdefault("namespace", default_namespace)
        space = f"{metadata['namespace']}/" if kind != CLASS else ""
        metadata = {"uid": f"{kind} {space}{metadata['name']}", "resourceVersion": "1", **metadata}
        each = {**document, "metadata": metadata}
        try:
            _READERS[kind](each)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadInput(f"it is no {kind} of resource.k8s.io/v1: {error!r}") from None
        self.found[kind].append(each)
        return True

    def listed(self, with_class: bool) -> ListedClaims:
        """Return them as one; `with_class`: with our DeviceClass, unless a file has another one of its name."""
        classes = [*([OURS] if with_class else []), *self.found[CLASS]]
        return ListedClaims(self.found[CLAIM], self.found[TEMPLATE], classes)


def claims_in(documents: Iterable[object]) -> ListedClaims:
    """Return what documents, or Lists of them, say of claims, and our DeviceClass. What is none of that counts not."""
    found = ClaimFiles()
    for document in documents:
        items = document.get("items") if isinstance(document, dict) else None
        for each in items if isinstance(items, list) else [document]:
            if isinstance(each, dict) and isinstance(each.get("metadata"), dict) and each["metadata"].get("name"):
                with suppress(BadInput):
                    found.takes(each, "default")
    return found.listed(with_class=True)


_READERS: dict[str, Callable[[Json], object]] = {CLAIM: read_claim, TEMPLATE: read_template, CLASS: read_class}
