"""The API server in memory with GPUReservations and PriorityClasses."""

from copy import deepcopy
from typing import Any

from fakes.api_server import ApiServer, Operation
from fakes.objects import GPU
from fakes.virtual_time import wall
from gpuledger.formats.custom_resource.gpu_reservation import GPUReservation
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import Conflict, NotFound

Json = dict[str, Any]


def a_reservation(name: str, limits: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    """Return a reservation for pods with these labels; `priorityClassName` goes into its template."""
    container = {"name": "main", "resources": {"limits": limits or {GPU: "1"}}}
    template = {"spec": {"containers": [container], "priorityClassName": spec.pop("priorityClassName", None)}}
    owners = [{"selector": {"matchLabels": labels or {"app": name}}}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": template, "owners": owners, **spec},
    }


class ReservationServer(ApiServer):
    """Has them as well."""

    def __init__(self) -> None:
        super().__init__()
        self.reservations: dict[tuple[str, str], Json] = {}
        self.priorities = {"urgent": 100}
        self._made = 0

    def reserve(self, found: Json) -> Json:
        """Let somebody create a reservation."""
        GPUReservation.model_validate(found)
        self._made += 1
        made = {"uid": f"uid-of-reservation-{self._made}", "generation": 1, "creationTimestamp": rfc3339(wall())}
        return self._store({**deepcopy(found), "metadata": {**found["metadata"], **made}})

    def change(self, name: str, **spec: Any) -> None:
        """Let somebody change what a reservation asks for."""
        found = deepcopy(self.reservations["default", name])
        found["spec"] |= spec
        found["metadata"]["generation"] += 1
        self._store(found)

    def delete_reservation(self, name: str) -> None:
        """Let one be gone."""
        self._drop("GPUReservation", self.reservations, ("default", name))

    def status(self, name: str) -> Json:
        """Return what was written about a reservation."""
        return dict(self.reservations["default", name].get("status") or {})

    def _store(self, found: Json) -> Json:
        metadata = found["metadata"]
        return self._put("GPUReservation", self.reservations, (metadata["namespace"], metadata["name"]), found)

    def _apply(self, operation: Operation, names: tuple[str, ...], body: Any) -> Json:
        match operation:
            case Operation.READ_PRIORITY_CLASS:
                if names[0] not in self.priorities:
                    raise NotFound(f"{names[0]} not found", 404)
                return {"value": self.priorities[names[0]]}
            case Operation.READ_RESERVATION | Operation.SAY_RESERVATION:
                found = self.reservations.get((names[0], names[1]))
                if found is None:
                    raise NotFound(f"{names[1]} not found", 404)
                if operation is Operation.READ_RESERVATION:
                    return found
                if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                    raise Conflict("the reservation has changed", 409)
                changed = {**deepcopy(found), "status": deepcopy(body["status"])}
                GPUReservation.model_validate(changed)
                return self._store(changed)
        return super()._apply(operation, names, body)
