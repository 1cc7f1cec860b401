"""GPUReservations as the operator reads them, and what it writes into their status.

The API server has checked them by their schema (gpu_reservation.py); of the template it has only seen that it is an
object: what is wrong with it is found when its request is read, as that of a pod.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import orjson

from gpuledger.model.errors import BadInput
from gpuledger.model.gang import ReservationName
from gpuledger.model.json_object import Json, JsonMapping, placed_by

KIND: Final = "GPUReservation"
PLURAL: Final = "gpureservations"

MOST_MEMBERS: Final = 256
MOST_OWNERS: Final = 16
MESSAGE_LENGTH: Final = 1024
LONGEST_BYTES: Final = 32 * 1024
"""Of a template, as JSON: it stays in memory for as long as the reservation exists."""


class Phase(StrEnum):
    """How far a reservation has come."""

    WAITING = "Waiting"
    """Cards are kept for fewer pods than it asks for; the condition says why."""
    RESERVED = "Reserved"
    """Cards are kept for all pods that have not come."""
    TAKEN = "Taken"
    """All of its pods have come."""
    EXPIRED = "Expired"
    """Its time is over; pods that have come keep their cards."""
    REFUSED = "Refused"
    """It asks for what can't be had, or can't be read."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Which pods may take what is reserved: all that it says is true of them."""

    labels: tuple[tuple[str, str], ...] = ()
    controller: tuple[str, str] | None = None
    """Kind and name of the object that has made the pod."""

    def owns(self, labels: Mapping[str, str], controllers: Collection[tuple[str, str]]) -> bool:
        """Return whether a pod with these labels, made by one of these objects, may take a seat."""
        is_made_by = self.controller is None or self.controller in controllers
        return is_made_by and all(labels.get(name) == value for name, value in self.labels)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation, in one version."""

    name: ReservationName
    uid: str
    version: int
    generation: int
    created: str
    """RFC 3339, in whole seconds of UTC."""
    count: int
    owners: tuple[Owner, ...]
    pod: Json
    """Its template as a pod of its namespace, as far as cards and nodes depend on it."""
    priority_class: str
    allocate_once: bool
    not_before: datetime | None
    expires: datetime | None
    taken: frozenset[str]
    """The members that have been taken so far."""
    status: Json
    """As it was written last."""
    problem: str = ""
    """Why it can't be had, if that is known already."""


def reservation(found: JsonMapping) -> Reservation:
    """Read a reservation. Raises BadInput for one that another release's CRD has let through."""
    try:
        metadata, spec, status = found["metadata"], found["spec"], found.get("status") or {}
        name = ReservationName(str(metadata["namespace"]), str(metadata["name"]))
        pod, problem = _template(spec["template"], metadata)
        return Reservation(
            name=name,
            uid=str(metadata["uid"]),
            version=int(metadata["resourceVersion"]),
            generation=int(metadata.get("generation") or 0),
            created=str(metadata.get("creationTimestamp") or ""),
            count=max(0, min(int(spec.get("count", 1)), MOST_MEMBERS)),
            owners=tuple(map(_owner, spec["owners"][:MOST_OWNERS])),
            pod=pod,
            priority_class=str(pod["spec"].get("priorityClassName") or ""),
            allocate_once=bool(spec.get("allocateOnce", True)),
            not_before=_time(spec.get("notBefore")),
            expires=_time(spec.get("expires")),
            taken=frozenset(map(str, status.get("takenMembers") or ())),
            status=dict(status),
            problem=problem,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"the reservation can't be read: {error!r}") from error


def _template(template: JsonMapping, metadata: JsonMapping) -> tuple[Json, str]:
    """Return a reservation's template as a pod; and why it is none, if so: the API server has not looked at it."""
    own = {name: str(metadata[name]) for name in ("name", "namespace", "uid")}
    nothing: Json = {"metadata": {**own, "labels": {}, "annotations": {}}, "spec": {}}
    try:
        given = template.get("metadata") or {}
        words = {kind: dict(given.get(kind) or {}) for kind in ("labels", "annotations")}
        pod: Json = {"metadata": {**own, **words}, "spec": placed_by(template["spec"])}
        length = len(orjson.dumps(pod))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return nothing, f"its template is not that of a pod: {error!r}"
    if length > LONGEST_BYTES:
        return nothing, f"its template has {length:,} bytes about cards and nodes, of at most {LONGEST_BYTES:,}"
    return pod, ""


def _owner(found: JsonMapping) -> Owner:
    labels = (found.get("selector") or {}).get("matchLabels") or {}
    controller = found.get("controller")
    made_by = (str(controller["kind"]), str(controller["name"])) if controller else None
    if not labels and made_by is None:
        raise ValueError("an owner that names no pods")
    return Owner(tuple(sorted((str(name), str(value)) for name, value in labels.items())), made_by)


def _time(text: object) -> datetime | None:
    """Return a time; the API server lets some pass that name no zone."""
    found = None if text is None else datetime.fromisoformat(str(text))
    return found if found is None or found.tzinfo is not None else found.replace(tzinfo=UTC)


def status_of(
    before: Reservation, phase: Phase, reserved: int, taken: Collection[str], nodes: Collection[str], why: str, now: str
) -> Json:
    """Return the status that says this; equal to that before if nothing has changed. `now` is RFC 3339."""
    ready = "True" if phase in (Phase.RESERVED, Phase.TAKEN) else "False"
    condition: dict[str, Any] = {
        "type": "Reserved",
        "status": ready,
        "reason": phase.value,
        "message": why[:MESSAGE_LENGTH],
        "observedGeneration": before.generation,
    }
    known: Json = next(iter(before.status.get("conditions") or ()), {})
    changed = known.get("status") != ready or "lastTransitionTime" not in known
    condition["lastTransitionTime"] = now if changed else known["lastTransitionTime"]
    return {
        "phase": phase.value,
        "reserved": reserved,
        "taken": len(taken),
        "takenMembers": sorted(taken),
        "nodes": sorted(nodes),
        "conditions": [condition],
    }


def status_patch(before: Reservation, status: Json) -> Json:
    """Return the merge patch that writes a status, if the object is still in the version that was read."""
    return {"metadata": {"resourceVersion": str(before.version)}, "status": status}
