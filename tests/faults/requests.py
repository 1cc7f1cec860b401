"""Requests as the proxy sees them, and which of them a fault is meant for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import orjson

_OBJECT = re.compile(
    r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
EXTENDER_CALLS = ("filter", "prioritize", "bind", "preempt")


@dataclass(frozen=True)
class Request:
    """A request on its way. `path` has the query with it."""

    method: str
    path: str
    body: bytes = b""

    @cached_property
    def json(self) -> Any:
        """The body; None where it is not JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    @cached_property
    def is_watch(self) -> bool:
        """Whether the answer goes on until somebody ends it."""
        return re.search(r"[?&]watch=(1|true)\b", self.path) is not None

    @cached_property
    def kind(self) -> str:
        """What it is about, such as "ledger write", "binding", "eviction", "watch pods", "read pods", "filter"."""
        plain = self.path.partition("?")[0]
        if plain[1:] in EXTENDER_CALLS:
            return plain[1:]
        found = _OBJECT.match(plain)
        if found is None:
            return "other"
        resource, name, subresource = found["resource"], found["name"], found["subresource"]
        if subresource in ("binding", "eviction"):
            return str(subresource)
        if (self.method, resource, subresource) == ("PATCH", "gpuallocations", "status"):
            return "ledger write"
        if self.method == "GET":
            return f"{'watch' if self.is_watch else 'read' if name else 'list'} {resource}"
        return f"{_VERBS.get(self.method, self.method)} {resource}"

    @cached_property
    def name(self) -> str:
        """Name of the object it is about; for the extender, of the pod."""
        if self.kind in EXTENDER_CALLS:
            arguments = self.json if isinstance(self.json, dict) else {}
            return str(arguments.get("PodName") or (arguments.get("Pod") or {}).get("metadata", {}).get("name", ""))
        found = _OBJECT.match(self.path.partition("?")[0])
        return (found and found["name"]) or ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


@dataclass(frozen=True)
class Match:
    """Which requests a fault is meant for, with a name for the log and for failing tests."""

    name: str
    holds_for: Callable[[Request], bool]

    def __str__(self) -> str:
        return self.name


def of_kind(kind: str, name: str = "") -> Match:
    """Match every request of a kind (see Request.kind), or only those about one object."""
    return Match(f"{kind} {name}".strip(), lambda r: r.kind == kind and name in ("", r.name))


def ledger_write(card: str = "") -> Match:
    """Match every write of holders, or only those of one card, given by its UUID."""
    return of_kind("ledger write", card.lower())


def entering(pod: str, card: str = "") -> Match:
    """Match ledger writes that put a pod, given by name or UID, on a card."""

    def holds(request: Request) -> bool:
        return ledger_write(card).holds_for(request) and any(
            pod in (holder.get("pod"), holder.get("podUID")) for holder in _added(request.json)
        )

    return Match(f"ledger write that enters {pod} {card}".strip(), holds)


def leaving(pod_uid: str, card: str = "") -> Match:
    """Match ledger writes that take a pod off a card."""

    def holds(request: Request) -> bool:
        return ledger_write(card).holds_for(request) and pod_uid in _removed(request.json)

    return Match(f"ledger write that removes {pod_uid} {card}".strip(), holds)


def changing(pod_uid: str, card: str = "") -> Match:
    """Match ledger writes that give a pod's holder another state."""

    def holds(request: Request) -> bool:
        return ledger_write(card).holds_for(request) and pod_uid in _changed(request.json)

    return Match(f"ledger write that changes {pod_uid} {card}".strip(), holds)


def binding(pod: str = "") -> Match:
    """Match Bindings, or only those of the pod with this name."""
    return of_kind("binding", pod)


def protecting(pod: str, claim: str = "") -> Match:
    """Match writes of the finalizer of a claim that belongs to a pod, or has a name of its own."""
    return _of_claim("finalizer", pod, claim, lambda r: "/status" not in r.path)


def allocating(pod: str, claim: str = "") -> Match:
    """Match writes of an allocation into a claim that belongs to a pod, or has a name of its own."""
    return _of_claim("allocation", pod, claim, lambda r: bool(_status(r).get("allocation")))


def deallocating(pod: str, claim: str = "") -> Match:
    """Match writes that take a claim's allocation back."""
    return _of_claim("end of the allocation", pod, claim, lambda r: _status(r).get("allocation", 0) is None)


def reserving(claim: str) -> Match:
    """Match writes that let another pod use a claim that is allocated."""
    return _of_claim("reservation", "", claim, lambda r: "reservedFor" in _status(r) and "allocation" not in _status(r))


def _of_claim(what: str, pod: str, claim: str, holds_for: Callable[[Request], bool]) -> Match:
    """Match writes of claims. What was made from a template is called by its pod, with something after that."""

    def holds(request: Request) -> bool:
        mine = request.name == claim if claim else request.name.startswith(f"{pod}-")
        return request.kind == "patch resourceclaims" and mine and holds_for(request)

    return Match(f"{what} of claim {claim or pod}", holds)


def _status(request: Request) -> dict[str, Any]:
    return dict((request.json or {}).get("status") or {})


def reading(resource: str, name: str = "") -> Match:
    """Match GETs of single objects."""
    return of_kind(f"read {resource}", name)


def listing(resource: str, selector: str = "") -> Match:
    """Match lists, page by page; with a part of the field selector, only those."""
    return _many(f"list {resource}", selector)


def watching(resource: str, selector: str = "") -> Match:
    """Match watches; with a part of the field selector, only those."""
    return _many(f"watch {resource}", selector)


FOLLOWED = "spec.schedulerName!="
"""Part of the field selector of the lists and watches that show the pods which the operator follows."""


def _many(kind: str, selector: str) -> Match:
    return Match(f"{kind} {selector}".strip(), lambda r: r.kind == kind and selector in unquote(r.path))


def _added(operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the holders that a JSON patch adds: one by one, or with the first status of a card."""
    added: list[dict[str, Any]] = []
    for operation in operations:
        if operation["op"] == "add" and operation["path"] == "/status/holders/-":
            added.append(operation["value"])
        elif operation["op"] == "add" and operation["path"] == "/status":
            added += operation["value"].get("holders", [])
    return added


def _changed(operations: list[dict[str, Any]]) -> set[str]:
    """Return the UIDs of the pods whose holders a JSON patch gives another state: each is tested for at its place."""
    paths = [o["path"] for o in operations if o["op"] == "replace"]
    changed = {path.removesuffix("/state") for path in paths if path.endswith("/state")}
    return {o["value"] for o in operations if o["op"] == "test" and o["path"].removesuffix("/podUID") in changed}


def _removed(operations: list[dict[str, Any]]) -> set[str]:
    """Return the UIDs of the pods that a JSON patch removes: each is tested for at its place."""
    removed = {operation["path"] for operation in operations if operation["op"] == "remove"}
    return {
        operation["value"]
        for operation in operations
        if operation["op"] == "test" and operation["path"].removesuffix("/podUID") in removed
    }
