"""An API server in memory, below the real requests of kube_api: its rules, its refusals, and faults on demand.

It stands where KubeClient stands, so what is tested are the paths, bodies and preconditions that really go out. Faults
are queued per operation; a request waits where a test holds it, so a test decides who comes first.
"""

import asyncio
import contextlib
import re
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, cast

import jsonpatch
import jsonpointer

from fakes.card_rules import check_card
from fakes.objects import with_conditions
from fakes.virtual_time import wall
from gpuledger.formats.custom_resource.stored_card import (
    claim_json,
    holder_json,
    new_allocation,
    pods_column,
    stored_card,
    used_json,
)
from gpuledger.formats.kubernetes.pod import bound_node
from gpuledger.kube_api.client import REQUEST_TIMEOUT_S, KubeClient, Page
from gpuledger.kube_api.writes import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, KubeStore
from gpuledger.model.card import Card
from gpuledger.model.errors import ApiError, Conflict, Invalid, NotFound, Replaced, Unreachable
from gpuledger.model.share import Claim, Holder, StoredCard

Json = dict[str, Any]

PAGE_SIZE = 2
"""Small, so that lists have several pages."""


FAR_S = 10**10
"""A time to end, in seconds, beyond which the API server's own sum runs over; here it does not."""


class Operation(StrEnum):
    """What a request does."""

    READ_CARD = "read card"
    CREATE_CARD = "create card"
    REPLACE_CARD = "replace card"
    DELETE_CARD = "delete card"
    WRITE_STATUS = "write status"
    READ_POD = "read pod"
    ANNOTATE = "annotate pod"
    CHANGE_STATUS = "change status of pod"
    READ_NODE = "read node"
    READ_NAMESPACE = "read namespace"
    ANNOTATE_NODE = "annotate node"
    SHOW_QUOTA = "change status of quota"
    BIND = "bind"
    LIST_NODES = "list nodes"
    LIST_CARDS = "list cards"
    LIST_PODS = "list pods"
    LIST_BUDGETS = "list budgets"
    SELECT_PODS = "select pods"
    EVICT = "evict"
    DELETE_POD = "delete pod"
    CREATE_POD = "create pod"
    READ_CLAIM = "read claim"
    PROTECT_CLAIM = "protect claim"
    WRITE_CLAIM = "change status of claim"
    READ_WORKLOAD = "read workload"
    SAY_CHECK = "change status of workload"
    SAY_ACTIVE = "change status of admission check"
    READ_RESERVATION = "read reservation"
    LIST_USAGES = "list records of what was held"
    READ_USAGE = "read a record of what was held"
    CREATE_USAGE = "create a record of what was held"
    WRITE_USAGE = "write a record of what was held"
    DELETE_USAGES = "delete records of what was held"
    SAY_RESERVATION = "change status of reservation"
    READ_PRIORITY_CLASS = "read priority class"


WRITES = frozenset(
    {
        Operation.CREATE_CARD,
        Operation.REPLACE_CARD,
        Operation.DELETE_CARD,
        Operation.WRITE_STATUS,
        Operation.BIND,
        Operation.ANNOTATE,
        Operation.CHANGE_STATUS,
        Operation.ANNOTATE_NODE,
        Operation.SHOW_QUOTA,
        Operation.EVICT,
        Operation.DELETE_POD,
        Operation.CREATE_POD,
        Operation.PROTECT_CLAIM,
        Operation.WRITE_CLAIM,
        Operation.SAY_CHECK,
        Operation.SAY_ACTIVE,
        Operation.SAY_RESERVATION,
        Operation.CREATE_USAGE,
        Operation.WRITE_USAGE,
        Operation.DELETE_USAGES,
    }
)

_OF_USAGES = (Operation.READ_USAGE, Operation.CREATE_USAGE, Operation.WRITE_USAGE, Operation.DELETE_USAGES)
_OF_CLAIMS = (Operation.READ_CLAIM, Operation.PROTECT_CLAIM, Operation.WRITE_CLAIM)

_CARDS = "/apis/gpuledger.dev/v1alpha1/gpuallocations"
_POD = r"/api/v1/namespaces/([^/]+)/pods/([^/]+)"
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_CLAIM = "/apis/resource.k8s.io/v1/namespaces/([^/]+)/resourceclaims/([^/]+)"
_RESERVATION = r"/apis/gpuledger.dev/v1alpha1/namespaces/([^/]+)/gpureservations/([^/]+)"
_USAGES = "/apis/gpuledger.dev/v1alpha1/gpuusages"
_WORKLOAD = rf"{_KUEUE}/namespaces/([^/]+)/workloads/([^/]+)"
_ROUTES = (
    ("GET", rf"{_CARDS}/([^/]+)", Operation.READ_CARD),
    ("POST", _CARDS, Operation.CREATE_CARD),
    ("PATCH", rf"{_CARDS}/([^/]+)", Operation.REPLACE_CARD),
    ("DELETE", rf"{_CARDS}/([^/]+)", Operation.DELETE_CARD),
    ("PATCH", rf"{_CARDS}/([^/]+)/status", Operation.WRITE_STATUS),
    ("GET", "/api/v1/nodes/([^/]+)", Operation.READ_NODE),
    ("GET", "/api/v1/namespaces/([^/]+)", Operation.READ_NAMESPACE),
    ("PATCH", "/api/v1/nodes/([^/]+)", Operation.ANNOTATE_NODE),
    ("PATCH", "/api/v1/namespaces/([^/]+)/resourcequotas/([^/]+)/status", Operation.SHOW_QUOTA),
    ("GET", _POD, Operation.READ_POD),
    ("PATCH", _POD, Operation.ANNOTATE),
    ("PATCH", rf"{_POD}/status", Operation.CHANGE_STATUS),
    ("POST", rf"{_POD}/binding", Operation.BIND),
    ("POST", rf"{_POD}/eviction", Operation.EVICT),
    ("DELETE", _POD, Operation.DELETE_POD),
    ("POST", "/api/v1/namespaces/([^/]+)/pods", Operation.CREATE_POD),
    ("GET", _CLAIM, Operation.READ_CLAIM),
    ("PATCH", _CLAIM, Operation.PROTECT_CLAIM),
    ("PATCH", rf"{_CLAIM}/status", Operation.WRITE_CLAIM),
    ("GET", _WORKLOAD, Operation.READ_WORKLOAD),
    ("PATCH", rf"{_WORKLOAD}/status", Operation.SAY_CHECK),
    ("PATCH", rf"{_KUEUE}/admissionchecks/([^/]+)/status", Operation.SAY_ACTIVE),
    ("GET", _RESERVATION, Operation.READ_RESERVATION),
    ("PATCH", rf"{_RESERVATION}/status", Operation.SAY_RESERVATION),
    ("GET", rf"{_USAGES}/([^/]+)", Operation.READ_USAGE),
    ("POST", _USAGES, Operation.CREATE_USAGE),
    ("PATCH", rf"{_USAGES}/([^/]+)/status", Operation.WRITE_USAGE),
    ("DELETE", _USAGES, Operation.DELETE_USAGES),
    ("GET", "/apis/scheduling.k8s.io/v1/priorityclasses/([^/]+)", Operation.READ_PRIORITY_CLASS),
    ("LIST", "/api/v1/nodes", Operation.LIST_NODES),
    ("LIST", _CARDS, Operation.LIST_CARDS),
    ("LIST", _USAGES, Operation.LIST_USAGES),
    ("LIST", "/api/v1/pods", Operation.LIST_PODS),
    ("LIST", "/apis/policy/v1/namespaces/([^/]+)/poddisruptionbudgets", Operation.LIST_BUDGETS),
    ("LIST", "/api/v1/namespaces/([^/]+)/pods", Operation.SELECT_PODS),
)


_CONTENT_TYPES = {
    Operation.REPLACE_CARD: JSON_PATCH,
    Operation.WRITE_STATUS: JSON_PATCH,
    Operation.ANNOTATE: MERGE_PATCH,
    Operation.CHANGE_STATUS: STRATEGIC_PATCH,
    Operation.ANNOTATE_NODE: MERGE_PATCH,
    Operation.SHOW_QUOTA: MERGE_PATCH,
    Operation.PROTECT_CLAIM: MERGE_PATCH,
    Operation.WRITE_CLAIM: MERGE_PATCH,
    Operation.SAY_CHECK: MERGE_PATCH,
    Operation.SAY_ACTIVE: MERGE_PATCH,
    Operation.SAY_RESERVATION: MERGE_PATCH,
    Operation.WRITE_USAGE: MERGE_PATCH,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """How one request fares."""

    before: asyncio.Event | None = None
    """Not looked at until this is set."""
    refusal: ApiError | None = None
    """Answered with this, and not carried out."""
    late: asyncio.Event | None = None
    """Given up without an answer, and carried out when this is set."""
    after: asyncio.Event | None = None
    """Carried out at once, answered when this is set."""
    loss: ApiError | None = None
    """Carried out, but answered with this."""


REPLACED = Replaced("metadata.uid: Invalid value: field is immutable", 422)


def refuse(error: ApiError) -> Fault:
    """Answer with an error and change nothing."""
    return Fault(refusal=error)


def lose_request() -> Fault:
    """Let the request get lost on the way there."""
    return Fault(refusal=Unreachable("connection reset before the request arrived"))


def lose_answer() -> Fault:
    """Carry the request out and let the answer get lost."""
    return Fault(loss=Unreachable("connection reset before the answer arrived"))


def hold_request(event: asyncio.Event) -> Fault:
    """Let the request wait before it is carried out."""
    return Fault(before=event)


def hold_answer(event: asyncio.Event) -> Fault:
    """Carry the request out and let its answer wait."""
    return Fault(after=event)


def deliver_late(event: asyncio.Event) -> Fault:
    """Give the request up without an answer, and carry it out later."""
    return Fault(late=event)


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it came in."""

    operation: Operation
    path: str
    body: Any


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch would show."""

    kind: str
    type: str
    object: Json


class ServerClock:
    """The API server's clock; as long as it says nothing, no accounts are kept."""

    def __init__(self) -> None:
        self.says = False
        self.ahead = timedelta()
        """Of the time that passes: somebody has set it."""

    def now(self) -> datetime | None:
        """Return the time of day."""
        return wall() + self.ahead if self.says else None


class ApiServer:
    """Objects with one counter of versions, and the requests that read and change them."""

    def __init__(self) -> None:
        self.cards: dict[str, Json] = {}
        self.pods: dict[tuple[str, str], Json] = {}
        self.nodes: dict[str, Json] = {}
        self.quotas: dict[tuple[str, str], Json] = {}
        self.claims: dict[tuple[str, str], Json] = {}
        """ResourceClaims."""
        self.namespaces: dict[str, dict[str, str]] = {}
        """Annotations of those that have some, by name."""
        self.usages: dict[str, Json] = {}
        """Records of what namespaces held, by name."""
        self.server_clock = ServerClock()
        self.calls: list[Call] = []
        self.changes: list[Change] = []
        """Every change of an object, in order: what watches would show."""
        self.rules: list[Callable[[Json], bool]] = []
        """Further rules for a card's object, beside those of the CRD; what returns False is refused."""
        self.budgets: list[Json] = []
        """PodDisruptionBudgets. Their labels are matched by equality alone."""
        self.in_flight: Counter[Operation] = Counter()
        self.most_in_flight: Counter[Operation] = Counter()
        self._version = 100
        self._faults: dict[Operation, deque[Fault | None]] = defaultdict(deque)
        self._late: set[asyncio.Task[None]] = set()
        self.store = KubeStore(cast(KubeClient, self))

    # For tests.

    def queue(self, operation: Operation, *faults: Fault | None) -> None:
        """Let the next requests of a kind fare like this; None means: as usual."""
        self._faults[operation].extend(faults)

    def called(self, *operations: Operation) -> list[Call]:
        """Return the requests of these kinds so far."""
        return [call for call in self.calls if call.operation in operations]

    def writes(self) -> list[Operation]:
        """Return the kinds of all requests so far that were to change something."""
        return [call.operation for call in self.calls if call.operation in WRITES]

    def patches(self) -> list[list[Json]]:
        """Return the JSON patches of cards' status so far."""
        return [call.body for call in self.called(Operation.WRITE_STATUS)]

    def keep_accounts(self) -> None:
        """Have the cards' definition that knows accounts, and say the time; before there are any cards."""
        self.server_clock.says = True

    def put_card(
        self, card: Card, *holders: Holder, opened: bool = True, phase: str = "Ready", claims: Sequence[Claim] = ()
    ) -> StoredCard:
        """Store a card as if it had been there always, or as if somebody else had written it."""
        old = self.cards.get(card.object_name)
        allocation = new_allocation(card)
        if opened:
            allocation["status"] = {
                "phase": phase,
                "reason": "",
                "used": used_json(holders),
                "pods": pods_column(holders),
                "holders": [holder_json(holder) for holder in holders],
                "accountRevision": 0,
            }
            if claims:
                allocation["status"]["claims"] = [claim_json(claim) for claim in claims]
        return stored_card(self._put_card(allocation, old))

    def holders_of(self, card: Card) -> list[str]:
        """Return the UIDs of the pods that hold a card, in the order in which they are listed."""
        status = self.cards[card.object_name].get("status") or {"holders": []}
        return [holder["podUID"] for holder in status["holders"]]

    def card(self, card: Card) -> StoredCard:
        """Return a card as it is stored."""
        return stored_card(self.cards[card.object_name])

    def put_pod(self, pod: Json) -> Json:
        """Create or change a pod."""
        metadata = pod["metadata"]
        return self._put("Pod", self.pods, (metadata["namespace"], metadata["name"]), pod)

    def delete_pod(self, name: str, namespace: str = "default") -> None:
        """Let a pod be gone."""
        self._drop("Pod", self.pods, (namespace, name))

    def node_of(self, name: str) -> str:
        """Return the node that a pod is bound to, or an empty string."""
        return bound_node(self.pods["default", name])

    def put_quota(self, quota: Json) -> Json:
        """Create or change a ResourceQuota."""
        metadata = quota["metadata"]
        return self._put("ResourceQuota", self.quotas, (metadata["namespace"], metadata["name"]), quota)

    def put_claim(self, claim: Json) -> Json:
        """Create or change a ResourceClaim."""
        metadata = claim["metadata"]
        return self._put("ResourceClaim", self.claims, (metadata["namespace"], metadata["name"]), claim)

    def put_node(self, node: Json) -> Json:
        """Create or change a node."""
        return self._put("Node", self.nodes, node["metadata"]["name"], node)

    def delete_node(self, name: str) -> None:
        """Let a node be gone."""
        self._drop("Node", self.nodes, name)

    def delete_card(self, card: Card) -> None:
        """Delete a card, as a person with kubectl can."""
        self._drop("GPUAllocation", self.cards, card.object_name)

    # What KubeClient offers.

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        parameters: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        longest_bytes: int | None = None,
    ) -> Json:
        """Answer one request, or raise what KubeClient would raise."""
        operation, names = _route(method, path)
        if content_type != _CONTENT_TYPES.get(operation, "application/json"):
            raise AssertionError(f"{method} {path} with content type {content_type}")
        sent = parameters if operation is Operation.DELETE_USAGES else body
        answer: Json = await self._carry_out(
            *(operation, path, body, timeout_s),
            lambda: (self._apply_to_usages if operation in _OF_USAGES else self._apply)(operation, names, sent),
        )
        return answer

    async def pages(self, path: str, parameters: Mapping[str, str] | None = None) -> AsyncIterator[Page]:
        """Yield the items of a list, page by page, all from one moment."""
        operation, names = _route("LIST", path)
        query = dict(parameters or {})
        items, version = await self._carry_out(
            *(operation, path, None, REQUEST_TIMEOUT_S),
            lambda: (self._list(operation, names, query), str(self._version)),
        )
        for start in range(0, max(1, len(items)), PAGE_SIZE):
            await asyncio.sleep(0)
            page = Page({"items": items[start : start + PAGE_SIZE], "metadata": {"resourceVersion": version}})
            yield page
            page.clear()

    async def _carry_out(
        self, operation: Operation, path: str, body: Any, timeout_s: float, apply: Callable[[], Any]
    ) -> Any:
        self.calls.append(Call(operation, path, deepcopy(body)))
        faults = self._faults[operation]
        fault = (faults.popleft() if faults else None) or Fault()
        self.in_flight[operation] += 1
        self.most_in_flight[operation] = max(self.most_in_flight[operation], self.in_flight[operation])
        try:
            async with asyncio.timeout(timeout_s):
                return await self._fare(fault, apply)
        except TimeoutError:
            raise Unreachable(f"{operation} {path}: no answer within {timeout_s} s") from None
        finally:
            self.in_flight[operation] -= 1

    async def _fare(self, fault: Fault, apply: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        if fault.before:
            await fault.before.wait()
        if fault.refusal:
            raise fault.refusal
        if fault.late:
            task = asyncio.create_task(self._apply_late(fault.late, apply))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise Unreachable("no answer; the request is still under way")
        answer = deepcopy(apply())
        if fault.after:
            await fault.after.wait()
        if fault.loss:
            raise fault.loss
        return answer

    async def _apply_late(self, event: asyncio.Event, apply: Callable[[], Any]) -> None:
        await event.wait()
        with contextlib.suppress(ApiError):  # nobody is there to hear it
            apply()

    # Requests.

    def _apply(self, operation: Operation, names: tuple[str, ...], body: Any) -> Json:
        changes: dict[Operation, Callable[[Json, Json], Json]] = {  # of a pod, or a claim
            Operation.READ_POD: _as_it_is,
            Operation.READ_CLAIM: _as_it_is,
            Operation.PROTECT_CLAIM: self._change_claim,
            Operation.WRITE_CLAIM: self._change_claim,
            Operation.BIND: self._bind,
            Operation.ANNOTATE: self._annotate,
            Operation.CHANGE_STATUS: self._change_status,
            Operation.EVICT: self._evict,
            Operation.DELETE_POD: self._let_leave,
        }
        match operation:
            case Operation.READ_CARD:
                return _found(self.cards, names[0])
            case Operation.READ_NODE | Operation.READ_NAMESPACE:
                return self._of_cluster(operation, names[0])
            case Operation.ANNOTATE_NODE:
                return self._annotate_node(_found(self.nodes, names[0]), body)
            case Operation.SHOW_QUOTA:
                return self._show_quota(_found(self.quotas, (names[0], names[1])), body)
            case Operation.CREATE_CARD:
                if body["metadata"]["name"] in self.cards:
                    raise Conflict(f"{body['metadata']['name']} already exists", 409)
                return self._put_card(body, None)
            case Operation.CREATE_POD:
                return self._create_pod(body)
            case Operation.REPLACE_CARD | Operation.WRITE_STATUS:
                return self._patch_card(_found(self.cards, names[0]), body, operation is Operation.WRITE_STATUS)
            case Operation.DELETE_CARD:
                return self._delete_card(names[0], body["preconditions"]["resourceVersion"])
            case _ if operation in changes:
                objects = self.claims if operation in _OF_CLAIMS else self.pods
                return changes[operation](_found(objects, (names[0], names[1])), body)
        raise AssertionError(f"{operation} is not a request")

    def _of_cluster(self, operation: Operation, name: str) -> Json:
        if operation is Operation.READ_NODE:
            return _found(self.nodes, name)
        return {"metadata": {"name": name, "annotations": self.namespaces.get(name, {})}}

    def _apply_to_usages(self, operation: Operation, names: tuple[str, ...], body: Any) -> Json:
        if operation is Operation.READ_USAGE:
            return _found(self.usages, names[0])
        if operation is Operation.WRITE_USAGE:
            return self._write_usage(_found(self.usages, names[0]), body)
        if operation is Operation.CREATE_USAGE:
            if body["metadata"]["name"] in self.usages:
                raise Conflict(f"{body['metadata']['name']} already exists", 409)
            return self._put("GPUUsage", self.usages, body["metadata"]["name"], body)
        for name in [name for name, usage in self.usages.items() if _has_labels(usage, body["labelSelector"])]:
            self._drop("GPUUsage", self.usages, name)
        return {}

    def _list(self, operation: Operation, names: tuple[str, ...], parameters: dict[str, str]) -> list[Json]:
        match operation:
            case Operation.LIST_BUDGETS:
                return [budget for budget in self.budgets if budget["metadata"]["namespace"] == names[0]]
            case Operation.SELECT_PODS:
                labels = dict(part.split("=") for part in parameters.get("labelSelector", "").split(",") if part)
                here = [pod for (namespace, _), pod in self.pods.items() if namespace == names[0]]
                return [pod for pod in here if labels.items() <= pod["metadata"].get("labels", {}).items()]
            case Operation.LIST_USAGES:
                return [usage for usage in self.usages.values() if _has_labels(usage, parameters["labelSelector"])]
            case Operation.LIST_NODES:
                return list(self.nodes.values())
            case Operation.LIST_CARDS:
                return list(self.cards.values())
        on_node = re.fullmatch(r"spec\.nodeName=(.+)", parameters["fieldSelector"])
        if on_node is not None:
            return [pod for pod in self.pods.values() if bound_node(pod) == on_node[1]]
        selector = re.fullmatch(r"spec\.schedulerName(!?)=([^,]+),spec\.nodeName(!?)=", parameters["fieldSelector"])
        if selector is None:
            raise AssertionError(f"unknown field selector {parameters['fieldSelector']}")
        differs, name, bound = selector.groups()
        chosen = [pod for pod in self.pods.values() if (pod["spec"]["schedulerName"] != name) == bool(differs)]
        return [pod for pod in chosen if bool(bound_node(pod)) == bool(bound)]

    def _patch_card(self, old: Json, operations: list[Json], of_status: bool) -> Json:
        try:
            patched: Json = jsonpatch.apply_patch(old, operations)
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
            raise Invalid(f"the patch can't be applied: {error}", 422) from error
        if of_status:
            return self._put_card({**deepcopy(old), "status": patched["status"]}, old)
        status = {"status": deepcopy(old["status"])} if "status" in old else {}
        return self._put_card({key: value for key, value in patched.items() if key != "status"} | status, old)

    def _put_card(self, new: Json, old: Json | None) -> Json:
        if self.server_clock.says and "status" in new:
            new = {**new, "status": {"ended": [], **new["status"]}}  # the definition's default
        check_card(new, old)
        if not all(rule(new) for rule in self.rules):
            raise Invalid("refused by a rule of the test", 422)
        return self._put("GPUAllocation", self.cards, new["metadata"]["name"], new)

    def _write_usage(self, usage: Json, change: Json) -> Json:
        if change["metadata"]["resourceVersion"] != usage["metadata"]["resourceVersion"]:
            raise Conflict("the record has changed", 409)
        return self._put("GPUUsage", self.usages, usage["metadata"]["name"], {**usage, "status": change["status"]})

    def _delete_card(self, name: str, version: str) -> Json:
        if _found(self.cards, name)["metadata"]["resourceVersion"] != version:
            raise Conflict(f"the version of {name} is not {version}", 409)
        return self._drop("GPUAllocation", self.cards, name)

    def _bind(self, pod: Json, binding: Json) -> Json:
        metadata, wanted = pod["metadata"], binding["metadata"]
        if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
            raise Conflict(f"the UID in the precondition is {wanted['uid']}, the pod's is {metadata['uid']}", 409)
        if wanted.get("resourceVersion") not in (None, "", metadata["resourceVersion"]):
            raise Conflict(f"the pod has changed since {wanted['resourceVersion']}", 409)
        if metadata.get("deletionTimestamp"):
            raise Conflict("the pod is being deleted", 409)
        if bound_node(pod):
            raise Conflict(f"the pod is already assigned to node {bound_node(pod)}", 409)
        bound = deepcopy(pod)
        bound["spec"]["nodeName"] = binding["target"]["name"]
        bound["metadata"]["annotations"] = {**metadata.get("annotations", {}), **wanted.get("annotations", {})}
        self.put_pod(bound)
        return {}

    def _evict(self, pod: Json, eviction: Json) -> Json:
        labels = pod["metadata"].get("labels", {}).items()
        covering = [b for b in self.budgets if b["spec"]["selector"]["matchLabels"].items() <= labels]
        if any(budget["status"]["disruptionsAllowed"] <= 0 for budget in covering):
            raise Unreachable("Cannot evict pod as it would violate the pod's disruption budget.", 429)
        if eviction["deleteOptions"].get("dryRun"):
            return deepcopy(pod)
        left = self._let_leave(pod, eviction["deleteOptions"])
        for budget in covering:
            budget["status"]["disruptionsAllowed"] -= 1
        return left

    def _create_pod(self, body: Json) -> Json:
        metadata = body["metadata"]
        if (metadata["namespace"], metadata["name"]) in self.pods:
            raise Conflict(f"{metadata['name']} already exists", 409)
        own = {"uid": f"uid-{metadata['name']}", "creationTimestamp": wall().strftime("%Y-%m-%dT%H:%M:%SZ")}
        return self.put_pod({"status": {}, **deepcopy(body), "metadata": {**metadata, **own}})

    def _let_leave(self, pod: Json, options: Json) -> Json:
        """Delete a pod without a node; one with a node gets its time to end, and a test lets it be gone."""
        if options["preconditions"]["uid"] != pod["metadata"]["uid"]:
            raise Conflict("the UID in the precondition is another one", 409)
        if not bound_node(pod):
            self.delete_pod(pod["metadata"]["name"], pod["metadata"]["namespace"])
            return {}
        leaving = deepcopy(pod)
        asked_s = options.get("gracePeriodSeconds", pod["spec"].get("terminationGracePeriodSeconds", 30))
        if asked_s == 0:
            self.delete_pod(pod["metadata"]["name"], pod["metadata"]["namespace"])
            return {}
        grace_s = min(asked_s, FAR_S)
        end = wall() + timedelta(seconds=grace_s)
        leaving["metadata"].setdefault("deletionTimestamp", end.strftime("%Y-%m-%dT%H:%M:%SZ"))
        return self.put_pod(leaving)

    def _annotate(self, pod: Json, change: Json) -> Json:
        metadata, wanted = pod["metadata"], change["metadata"]
        if wanted["uid"] != metadata["uid"]:
            raise REPLACED
        annotated = deepcopy(pod)
        annotated["metadata"]["annotations"] = {**metadata.get("annotations", {}), **wanted["annotations"]}
        return self.put_pod(annotated)

    def _change_status(self, pod: Json, change: Json) -> Json:
        if change["metadata"].get("resourceVersion") not in (None, pod["metadata"]["resourceVersion"]):
            raise Conflict("the pod has changed since", 409)
        if change["metadata"]["uid"] != pod["metadata"]["uid"]:
            raise REPLACED
        status = {**pod["status"], **{k: v for k, v in change["status"].items() if k != "conditions"}}
        changed = {**pod, "status": {key: value for key, value in status.items() if value is not None}}
        if "conditions" not in change["status"]:
            return pod if changed == pod else self.put_pod(changed)
        return self.put_pod(with_conditions(changed, change["status"]["conditions"]))

    def _change_claim(self, claim: Json, change: Json) -> Json:
        """Change the finalizers or the status; an allocation never becomes another one, and goes with its users."""
        wanted = change["metadata"]
        if any(wanted[key] != claim["metadata"][key] for key in ("uid", "resourceVersion")):
            raise Conflict("the claim has changed, or is another one", 409)
        before = claim.get("status") or {}
        status = {key: each for key, each in {**before, **change.get("status", {})}.items() if each}
        kept = [each.get("allocation") for each in (before, status)]
        if all(kept) and kept[0] != kept[1]:
            raise Invalid("status.allocation: field is immutable", 422)
        if status.get("reservedFor") and not status.get("allocation"):
            raise Invalid("status.reservedFor: may not be specified when allocation is not set", 422)
        return self.put_claim({**claim, "metadata": {**claim["metadata"], **wanted}, "status": status})

    def _annotate_node(self, node: Json, change: Json) -> Json:
        metadata, wanted = node["metadata"], change["metadata"]
        if wanted.get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
            raise Conflict("the node has changed", 409)
        merged = {**metadata.get("annotations", {}), **wanted["annotations"]}
        annotated = deepcopy(node)
        annotated["metadata"]["annotations"] = {name: value for name, value in merged.items() if value is not None}
        return self.put_node(annotated)

    def _show_quota(self, quota: Json, change: Json) -> Json:
        if change["metadata"]["uid"] != quota["metadata"]["uid"]:
            raise REPLACED
        used = {**quota.get("status", {}).get("used", {}), **change["status"]["used"]}
        return self.put_quota({**quota, "status": {**quota.get("status", {}), "used": used}})

    # Objects.

    def _put(self, kind: str, objects: dict[Any, Json], key: object, new: Json) -> Json:
        """Store an object under a new version, unless nothing in it differs."""
        old = objects.get(key)
        if old is not None and _without_version(new) == _without_version(old):
            return old
        self._version += 1
        stored = deepcopy(new)
        stored["metadata"]["resourceVersion"] = str(self._version)
        objects[key] = stored
        self.changes.append(Change(kind, "ADDED" if old is None else "MODIFIED", deepcopy(stored)))
        return stored

    def _drop(self, kind: str, objects: dict[Any, Json], key: object) -> Json:
        gone = deepcopy(objects.pop(key))
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self.changes.append(Change(kind, "DELETED", gone))
        return gone


def _route(method: str, path: str) -> tuple[Operation, tuple[str, ...]]:
    for of_route, pattern, operation in _ROUTES:
        match = re.fullmatch(pattern, path)
        if method == of_route and match:
            return operation, match.groups()
    raise AssertionError(f"no such request: {method} {path}")


def _found(objects: Mapping[Any, Json], key: object) -> Json:
    if key not in objects:
        raise NotFound(f"{key} not found", 404)
    return objects[key]


def _has_labels(found: Json, selector: str) -> bool:
    """Return whether an object has labels as a selector wants them, all of it `KEY in (ONE,ANOTHER)`."""
    labels, wanted = found["metadata"]["labels"], re.findall(r"([^,()]+) in \(([^)]*)\)", selector)
    return all(labels[key] in values.split(",") for key, values in wanted)


def _as_it_is(stored: Json, _: Json) -> Json:
    return stored


def _without_version(stored: Json) -> Json:
    return {**stored, "metadata": {**stored["metadata"], "resourceVersion": ""}}
