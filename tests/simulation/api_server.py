"""What the simulated API server stores, and by which rules it refuses. It answers at once; the network is elsewhere.

Objects are never changed in place: whoever was given one keeps it as it was. So nothing is copied that did not change.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from fakes.objects import with_conditions
from gpuledger.formats.custom_resource.stored_card import new_allocation
from gpuledger.formats.kubernetes.other import LEASE_NAME, LEASE_NAMESPACE
from gpuledger.kube_api.reads import ALLOCATIONS
from gpuledger.model.card import Card
from gpuledger.model.errors import Conflict, Invalid, NotFound, Unreachable
from simulation.card_checks import broken_rule
from simulation.json_patch import PatchFailed, apply_patch

Json = dict[str, Any]


BUDGET = "default/all"
"""The key of the one PodDisruptionBudget there can be, which covers all pods."""


class Kind(StrEnum):
    """What is stored."""

    NODE = "node"
    POD = "pod"
    CARD = "card"
    LEASE = "lease"
    BUDGET = "budget"


class Operation(StrEnum):
    """What a request does."""

    LIST_NODES = "list nodes"
    LIST_CARDS = "list cards"
    LIST_PODS = "list pods"
    LIST_LEASES = "list leases"
    READ_CARD = "read card"
    CREATE_CARD = "create card"
    REPLACE_CARD = "change card"
    DELETE_CARD = "delete card"
    WRITE_STATUS = "write status of card"
    READ_POD = "read pod"
    ANNOTATE = "annotate pod"
    CHANGE_STATUS = "change status of pod"
    BIND = "bind pod"
    CREATE_EVENT = "create event"
    LIST_BUDGETS = "list budgets"
    LIST_SELECTED_PODS = "list pods of budget"
    EVICT = "evict pod"
    DELETE_POD = "delete pod"


_POD = r"/api/v1/namespaces/([^/]+/)pods/([^/]+)"
_ROUTES = tuple(
    (method, re.compile(pattern), operation)
    for method, pattern, operation in (
        ("GET", "/api/v1/nodes", Operation.LIST_NODES),
        ("GET", ALLOCATIONS, Operation.LIST_CARDS),
        ("GET", "/api/v1/pods", Operation.LIST_PODS),
        ("GET", rf"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases", Operation.LIST_LEASES),
        ("GET", rf"{ALLOCATIONS}/([^/]+)", Operation.READ_CARD),
        ("POST", ALLOCATIONS, Operation.CREATE_CARD),
        ("PATCH", rf"{ALLOCATIONS}/([^/]+)", Operation.REPLACE_CARD),
        ("DELETE", rf"{ALLOCATIONS}/([^/]+)", Operation.DELETE_CARD),
        ("PATCH", rf"{ALLOCATIONS}/([^/]+)/status", Operation.WRITE_STATUS),
        ("GET", _POD, Operation.READ_POD),
        ("PATCH", _POD, Operation.ANNOTATE),
        ("PATCH", rf"{_POD}/status", Operation.CHANGE_STATUS),
        ("POST", rf"{_POD}/binding", Operation.BIND),
        ("POST", rf"{_POD}/eviction", Operation.EVICT),
        ("DELETE", _POD, Operation.DELETE_POD),
        ("POST", r"/api/v1/namespaces/[^/]+/events", Operation.CREATE_EVENT),
        ("GET", r"/apis/policy/v1/namespaces/[^/]+/poddisruptionbudgets", Operation.LIST_BUDGETS),
        ("GET", r"/api/v1/namespaces/[^/]+/pods", Operation.LIST_SELECTED_PODS),
    )
)


@lru_cache(maxsize=1024)
def route(method: str, path: str) -> tuple[Operation, str]:
    """Return what a request does, and the key of the object it is about; none for a list."""
    for of_route, pattern, operation in _ROUTES:
        match = pattern.fullmatch(path)
        if method == of_route and match:
            return operation, "".join(match.groups())
    raise AssertionError(f"no such request: {method} {path}")


@dataclass(frozen=True, slots=True)
class Change:
    """One object's change. `old` is None for a new object, `new` for one that is gone."""

    kind: Kind
    key: str
    old: Json | None
    new: Json | None
    version: int

    @property
    def object(self) -> Json:
        """Return the object, as it was last if it is gone."""
        found = self.new or self.old
        if found is None:
            raise AssertionError("a change of nothing")
        return found


Selector = Callable[[Json], bool]


def everything(_: Json) -> bool:
    """Select every object."""
    return True


def is_bound(pod: Json) -> bool:
    """Select pods with a node."""
    return bool(pod["spec"].get("nodeName"))


def is_pending(pod: Json) -> bool:
    """Select pods without a node."""
    return not pod["spec"].get("nodeName")


@lru_cache(maxsize=16)
def selector_of(field_selector: str | None) -> Selector:
    """Return what a request's field selector means."""
    if field_selector in (None, f"metadata.name={LEASE_NAME}", "spec.schedulerName!=default-scheduler"):
        return everything
    if field_selector == "spec.schedulerName!=default-scheduler,spec.nodeName!=":
        return is_bound
    if field_selector == "spec.schedulerName=gpuledger,spec.nodeName=":
        return is_pending
    raise AssertionError(f"unknown field selector {field_selector}")


class ApiServer:
    """Objects by kind and key, with one counter of versions."""

    def __init__(self) -> None:
        self.objects: dict[Kind, dict[str, Json]] = {kind: {} for kind in Kind}
        self.history: list[Change] = []
        self.listeners: list[Callable[[Change], None]] = []
        self.version = 100
        self.oldest = 0
        """Watches that go on from before this version are refused: what has happened since then is forgotten."""
        self.starts = 0
        """How often it was started anew. What was under way to it before never arrives."""
        self.is_down = False
        """It is stopped: it answers nothing, and shows nothing."""
        self._undo: list[tuple[int, Kind, str, Json | None]] = []  # version, kind, key, and the object before it
        self.leaves_at: Callable[[], str] = lambda: "2030-01-01T00:00:00Z"
        """When a pod must have ended that is told to leave now."""
        self.refuses_rules = True
        """Off only where the tests want to see what happens without the CRD's rules."""

    @property
    def cards(self) -> dict[str, Json]:
        """Cards by the name of their object."""
        return self.objects[Kind.CARD]

    @property
    def pods(self) -> dict[str, Json]:
        """Pods by NAMESPACE/NAME."""
        return self.objects[Kind.POD]

    # Requests.

    def carry_out(self, operation: Operation, key: str, body: Any, field_selector: str | None) -> Json:
        """Answer a request, or raise what KubeClient would raise."""
        match operation:
            case Operation.READ_POD | Operation.READ_CARD:
                return self._found(Kind.POD if operation is Operation.READ_POD else Kind.CARD, key)
            case Operation.WRITE_STATUS:
                return self._patch_card(self._found(Kind.CARD, key), body, of_status=True)
            case Operation.BIND | Operation.ANNOTATE | Operation.CHANGE_STATUS | Operation.EVICT:
                return self._change_pod(operation, self._found(Kind.POD, key), body)
            case Operation.REPLACE_CARD:
                return self._patch_card(self._found(Kind.CARD, key), body, of_status=False)
            case Operation.CREATE_CARD:
                return self._create_card(body)
            case Operation.DELETE_CARD:
                return self._delete_card(self._found(Kind.CARD, key), body["preconditions"]["resourceVersion"])
            case Operation.CREATE_EVENT:
                return {}
        return self.listing(LISTED[operation], selector_of(field_selector))

    def _change_pod(self, operation: Operation, pod: Json, body: Json) -> Json:
        changes = {
            Operation.BIND: self._bind,
            Operation.ANNOTATE: self._annotate,
            Operation.CHANGE_STATUS: self._change_status,
            Operation.EVICT: self._evict,
        }
        return changes[operation](pod, body)

    def listing(self, kind: Kind, selector: Selector) -> Json:
        """Return the list that a client gets."""
        items = [found for found in self.objects[kind].values() if selector(found)]
        return {"items": items, "metadata": {"resourceVersion": str(self.version)}}

    def _found(self, kind: Kind, key: str) -> Json:
        found = self.objects[kind].get(key)
        if found is None:
            raise NotFound(f"{kind} {key} not found", 404)
        return found

    def _patch_card(self, old: Json, operations: Sequence[Json], of_status: bool) -> Json:
        try:
            patched = apply_patch(old, operations)
        except PatchFailed as error:
            raise Invalid(f"the patch can't be applied: {error}", 422) from error
        if of_status:
            new = {**old, "status": patched["status"]}
        else:
            new = {**patched, "status": old["status"]} if "status" in old else patched
        return self._store_card(new, old)

    def _create_card(self, body: Json) -> Json:
        name = body["metadata"]["name"]
        if name in self.cards:
            raise Conflict(f"card {name} exists already", 409)
        metadata = {**body["metadata"], "uid": f"card-{self.version}"}
        return self._store_card({**{k: v for k, v in body.items() if k != "status"}, "metadata": metadata}, None)

    def _store_card(self, new: Json, old: Json | None) -> Json:
        broken = broken_rule(new, old) if self.refuses_rules else None
        if broken:
            raise Invalid(broken, 422)
        return self.put(Kind.CARD, new["metadata"]["name"], new)

    def _delete_card(self, card: Json, version: str) -> Json:
        if card["metadata"]["resourceVersion"] != version:
            raise Conflict(f"the card is not at version {version}", 409)
        self.drop(Kind.CARD, card["metadata"]["name"])
        return {}

    def _bind(self, pod: Json, binding: Json) -> Json:
        metadata, wanted = pod["metadata"], binding["metadata"]
        if wanted.get("uid") not in (None, metadata["uid"]):
            raise Conflict(f"the UID in the precondition is {wanted['uid']}, the pod's is {metadata['uid']}", 409)
        if wanted.get("resourceVersion") not in (None, "", metadata["resourceVersion"]):
            raise Conflict(f"the pod is at version {metadata['resourceVersion']}", 409)
        if metadata.get("deletionTimestamp"):
            raise Conflict("the pod is being deleted", 409)
        if pod["spec"].get("nodeName"):
            raise Conflict(f"the pod is assigned to node {pod['spec']['nodeName']} already", 409)
        annotations = {**metadata.get("annotations", {}), **wanted.get("annotations", {})}
        spec = {**pod["spec"], "nodeName": binding["target"]["name"]}
        self.put_pod({**pod, "spec": spec, "metadata": {**metadata, "annotations": annotations}})
        return {}

    def _evict(self, pod: Json, eviction: Json) -> Json:
        metadata = pod["metadata"]
        if eviction["deleteOptions"]["preconditions"]["uid"] != metadata["uid"]:
            raise Conflict("the UID in the precondition is not the pod's", 409)
        if not is_bound(pod):  # nobody has to end it
            self.drop(Kind.POD, f"{metadata['namespace']}/{metadata['name']}")
        elif not metadata.get("deletionTimestamp"):
            self._count_eviction()
            self.put_pod({**pod, "metadata": {**metadata, "deletionTimestamp": self.leaves_at()}})
        return {}

    def evictions_allowed(self) -> int | None:
        """Return how many evictions the budget allows that covers all pods, None if there is no budget."""
        budget = self.objects[Kind.BUDGET].get(BUDGET)
        return None if budget is None else int(budget["status"]["disruptionsAllowed"])

    def allow_evictions(self, number: int) -> None:
        """Have the budget of all pods allow so many evictions."""
        namespace, _, name = BUDGET.partition("/")
        metadata = {"namespace": namespace, "name": name, "uid": "uid-budget"}
        budget = {"metadata": metadata, "spec": {"selector": {}}, "status": {"disruptionsAllowed": number}}
        self.put(Kind.BUDGET, BUDGET, budget)

    def _count_eviction(self) -> None:
        allowed = self.evictions_allowed()
        if allowed is None:
            return
        if allowed <= 0:
            raise Unreachable("429: cannot evict pod as it would violate the pod's disruption budget", 429)
        self.allow_evictions(allowed - 1)

    def _annotate(self, pod: Json, change: Json) -> Json:
        metadata, wanted = pod["metadata"], change["metadata"]
        if wanted.get("uid") not in (None, metadata["uid"]):
            raise Invalid("metadata.uid: field is immutable", 422)
        annotations = {**metadata.get("annotations", {}), **wanted["annotations"]}
        return self.put_pod({**pod, "metadata": {**metadata, "annotations": annotations}})

    def _change_status(self, pod: Json, change: Json) -> Json:
        if change["metadata"]["uid"] != pod["metadata"]["uid"]:
            raise Conflict("the UID in the precondition is another one", 409)
        status = {**pod["status"], **{k: v for k, v in change["status"].items() if k != "conditions"}}
        changed = {**pod, "status": {key: value for key, value in status.items() if value is not None}}
        if "conditions" not in change["status"]:
            return pod if changed == pod else self.put_pod(changed)
        return self.put_pod(with_conditions(changed, change["status"]["conditions"]))

    def put_pod(self, pod: Json) -> Json:
        """Create or change a pod."""
        return self.put(Kind.POD, f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", pod)

    def put_card(self, card: Card) -> Json:
        """Create a card that is open for holders, without any."""
        allocation = new_allocation(card)
        used = {"memoryMiB": 0, "cores": 0, "number": 0}
        allocation["status"] = {"phase": "Ready", "reason": "", "used": used, "pods": "", "holders": []}
        allocation["metadata"]["uid"] = f"card-{card.object_name}"
        return self._store_card(allocation, None)

    def put(self, kind: Kind, key: str, new: Json) -> Json:
        """Store an object under a new version, unless nothing in it differs."""
        old = self.objects[kind].get(key)
        if old is not None and _same(new, old):
            return old
        self.version += 1
        stored = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.version)}}
        self.objects[kind][key] = stored
        self._undo.append((self.version, kind, key, old))
        self._tell(Change(kind, key, old, stored, self.version))
        return stored

    def drop(self, kind: Kind, key: str) -> None:
        """Let an object be gone. What watches show of it last carries the version of its end."""
        gone = self.objects[kind].pop(key)
        self.version += 1
        self._undo.append((self.version, kind, key, gone))
        last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        self._tell(Change(kind, key, last, None, self.version))

    @property
    def changes(self) -> int:
        """How many changes there have been, without those that were undone."""
        return len(self._undo)

    def as_of(self, kind: Kind, changes_ago: int) -> tuple[dict[str, Json], int]:
        """Return the objects of a kind as they were before so many of the latest changes, and the version of then."""
        objects, ago = dict(self.objects[kind]), min(changes_ago, len(self._undo) - 1)
        for _, changed, key, before in reversed(self._undo[len(self._undo) - ago :]):
            if changed is kind and before is None:
                del objects[key]
            elif changed is kind and before is not None:
                objects[key] = before
        return objects, self._undo[len(self._undo) - ago - 1][0]

    def restore(self, changes: int, jump: int) -> None:
        """Undo the last so many changes, and tell nobody: etcd was put back to an older copy of its data.

        Versions go on from there, and come a second time; or, after a jump, from a later one than there has ever been.
        """
        for _ in range(changes):
            _, kind, key, before = self._undo.pop()
            if before is None:
                del self.objects[kind][key]
            else:
                self.objects[kind][key] = before
        last = self._undo[-1][0]
        self.history = [change for change in self.history if change.version <= last]
        self.version = self.version + jump if jump else last
        self.oldest = self.version if jump else self.oldest
        self.starts += 1

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        for listener in self.listeners:
            listener(change)


def _same(new: Json, old: Json) -> bool:
    for field in new.keys() | old.keys():
        if field != "metadata" and new.get(field) != old.get(field):
            return False
    mine, theirs = new["metadata"], old["metadata"]
    return all(mine.get(k) == theirs.get(k) for k in mine.keys() | theirs.keys() if k != "resourceVersion")


LISTED = {
    Operation.LIST_NODES: Kind.NODE,
    Operation.LIST_CARDS: Kind.CARD,
    Operation.LIST_PODS: Kind.POD,
    Operation.LIST_LEASES: Kind.LEASE,
    Operation.LIST_BUDGETS: Kind.BUDGET,
    Operation.LIST_SELECTED_PODS: Kind.POD,
}
