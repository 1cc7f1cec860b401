"""The API server in memory with Kueue's objects, and what Kueue does to workloads, step by step as a test says."""

from copy import deepcopy
from typing import Any

from fakes.api_server import ApiServer, Operation
from fakes.queue_objects import a_condition
from fakes.virtual_time import wall
from gpuledger.model.errors import Conflict, NotFound

Json = dict[str, Any]


class QueueServer(ApiServer):
    """Has workloads and admission checks as well."""

    def __init__(self) -> None:
        super().__init__()
        self.workloads: dict[str, Json] = {}  # by name; all are in the namespace `default`
        self.checks: dict[str, Json] = {}

    # For tests.

    def put_workload(self, found: Json) -> Json:
        """Create or change a workload."""
        return self._put("Workload", self.workloads, found["metadata"]["name"], found)

    def delete_workload(self, name: str) -> None:
        """Let a workload be gone."""
        self._drop("Workload", self.workloads, name)

    def put_check(self, check: Json) -> Json:
        """Create or change an AdmissionCheck."""
        return self._put("AdmissionCheck", self.checks, check["metadata"]["name"], check)

    def set_condition(self, name: str, kind: str, status: str = "True") -> None:
        """Let Kueue say something of a workload."""
        found = deepcopy(self.workloads[name])
        others = [each for each in found["status"]["conditions"] if each["type"] != kind]
        found["status"]["conditions"] = [*others, a_condition(kind, status, wall().isoformat())]
        self.put_workload(found)

    def set_check(self, name: str, check: str, state: str, message: str = "", since: str = "") -> None:
        """Let somebody else say something of a check of a workload."""
        found = deepcopy(self.workloads[name])
        others = [each for each in found["status"]["admissionChecks"] if each["name"] != check]
        said = {"name": check, "state": state, "message": message, "lastTransitionTime": since or wall().isoformat()}
        found["status"]["admissionChecks"] = [*others, said]
        self.put_workload(found)

    def evict_workload(self, name: str) -> None:
        """Let Kueue take a workload's quota, and reset its checks."""
        found = deepcopy(self.workloads[name])
        del found["status"]["admission"]
        now = wall().isoformat()
        found["status"]["conditions"] = [
            a_condition("QuotaReserved", "False", now),
            a_condition("Admitted", "False", now),
            a_condition("Evicted", since=now),
        ]
        for check in found["status"]["admissionChecks"]:
            check |= {"state": "Pending", "message": "Reset to Pending after eviction", "lastTransitionTime": now}
        self.put_workload(found)

    def said(self, name: str) -> tuple[str, str]:
        """Return what gpuledger's check has said of a workload: its state, and why."""
        (check,) = [each for each in self.workloads[name]["status"]["admissionChecks"] if each["name"] == "cards"]
        return check["state"], check["message"]

    def state(self, name: str) -> str:
        """Return the state of gpuledger's check of a workload."""
        return self.said(name)[0]

    # Requests.

    def _apply(self, operation: Operation, names: tuple[str, ...], body: Any) -> Json:
        match operation:
            case Operation.READ_WORKLOAD:
                return _found(self.workloads, names[1])
            case Operation.SAY_CHECK:
                return self.put_workload(_merged(_found(self.workloads, names[1]), body))
            case Operation.SAY_ACTIVE:
                return self.put_check(_merged(_found(self.checks, names[0]), body))
        return super()._apply(operation, names, body)


def _found(objects: dict[str, Json], name: str) -> Json:
    if name not in objects:
        raise NotFound(f"{name} not found", 404)
    return objects[name]


def _merged(old: Json, patch: Json) -> Json:
    """Return an object after a merge patch of its status; what is null in a list is left out."""
    wanted, metadata = patch["metadata"], old["metadata"]
    if (
        wanted["resourceVersion"] != metadata["resourceVersion"]
        or wanted.get("uid", metadata["uid"]) != metadata["uid"]
    ):
        raise Conflict("the object has changed", 409)
    changed = {key: [_without_null(each) for each in value] for key, value in patch["status"].items()}
    return {**deepcopy(old), "status": {**deepcopy(old.get("status") or {}), **deepcopy(changed)}}


def _without_null(each: Json) -> Json:
    return {key: value for key, value in each.items() if value is not None}
