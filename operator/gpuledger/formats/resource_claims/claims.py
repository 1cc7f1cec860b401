"""ResourceClaims, their templates, and DeviceClasses: their requests, names, and the containers that use them.

Source: resource.k8s.io/v1 of Kubernetes 1.34 to 1.37 (staging/src/k8s.io/api/resource/v1/types.go). Its API server has
checked names, numbers of requests, and the cost of expressions. Objects with the same requests are read once.

A container gets one device of ours, because a container runtime puts the edits of several over each other. Requests
that the same containers use are one device; a claim that pods share is one, whatever they use of it. The node's agent
would refuse everything else when the pod starts, so it is refused before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from typing import Final, Protocol
from weakref import WeakValueDictionary

import orjson

from gpuledger.model.card import OWN_DOMAIN, Payer
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping, all_containers

DRIVER: Final = OWN_DOMAIN
"""Our DRA driver: in slices, in results of allocations, and in the node's plugin. As the resource of a demand: it is
asked for by a claim, and only nodes that serve claims have it."""

DEVICE_CLASS: Final = DRIVER
"""The DeviceClass that comes with the installation."""

MEMORY: Final = "memory"
CORES: Final = "cores"
SLOTS: Final = "slots"
"""Capacities of a device: bytes, percent of the card, and how many shares of it there can be."""

SERVES_CLAIMS_ANNOTATION: Final = "gpuledger.dev/serves-claims"
"""On a node: `true` where the kubelet has taken up our agent as a DRA driver."""

ONLY_TAINT: Final = "gpuledger.dev/only"
"""On each of our devices: it is given out by the ledger, and other schedulers have to leave it alone."""

UNHEALTHY_TAINT: Final = "gpuledger.dev/unhealthy"
"""On a device with a fault: no new pods. A claim's request tolerates such a card by this key, with the fault's class as
value and the effect NoExecute. No device has it with that effect, or Kubernetes would evict: the operator does."""

PROTECTION: Final = "resource.kubernetes.io/delete-protection"
"""Finalizer of an allocated claim that pods share: nobody can delete it under them. kube-controller-manager removes it,
with the allocation, when the last of them has ended. Source: resource.k8s.io/v1, Finalizer."""

MOST_CLAIMS: Final = 32
"""Of one pod: more than any needs, and each is looked up."""


def has_claims(pod: JsonMapping) -> bool:
    """Return whether a pod brings ResourceClaims, of whichever driver."""
    return bool((pod.get("spec") or {}).get("resourceClaims"))


def claim_names(pod: JsonMapping) -> Iterator[tuple[str, str, str]]:
    """Yield of each claim its name in the pod, the name of its ResourceClaim, and that of its template.

    Either can be empty: a claim that is made from a template has no name before that.
    """
    made = {
        str(each.get("name")): str(each.get("resourceClaimName") or "")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for each in (pod.get("spec") or {}).get("resourceClaims") or ():
        name, template = str(each.get("name")), str(each.get("resourceClaimTemplateName") or "")
        yield name, made.get(name, "") if template else str(each.get("resourceClaimName") or ""), template


def named_claims(pod: JsonMapping) -> list[tuple[str, str, str]]:
    """Return `claim_names`; none of a pod that has too many, which gets no cards, and could name 20,000."""
    found = list(islice(claim_names(pod), MOST_CLAIMS + 1))
    return found if len(found) <= MOST_CLAIMS else []


def tolerates_fault_s(claim: JsonMapping, request: str, fault_class: str) -> float | None:
    """Return how long a claim's request tolerates a card that has failed: infinity without an end, None if it does not.

    `request` is as in the results of an allocation: NAME, or NAME/SUBREQUEST.
    """
    waits_s = []
    for name, asked in _asked(claim):
        for each in (asked.get("tolerations") or ()) if name == request else ():
            is_ours = each.get("key") in (UNHEALTHY_TAINT, None, "") and each.get("effect") in ("NoExecute", None, "")
            if is_ours and (each.get("operator") == "Exists" or each.get("value") == fault_class):
                seconds = each.get("tolerationSeconds")
                waits_s.append(math.inf if seconds is None else float(max(seconds, 0)))
    return max(waits_s, default=None)


def _asked(claim: JsonMapping) -> Iterator[tuple[str, JsonMapping]]:
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        name = str(request.get("name"))
        yield name, request.get("exactly") or {}
        for sub in request.get("firstAvailable") or ():
            yield f"{name}/{sub.get('name')}", sub


def has_claim(pod: JsonMapping, name: str) -> bool:
    """Return whether a pod has a ResourceClaim of its namespace, whatever else it has."""
    return any(found == name for _, found, _ in claim_names(pod))


def names_of_claims(pod: JsonMapping) -> frozenset[str]:
    """Return the names of the ResourceClaims that a pod names, or that were made for it, as far as these are known."""
    return frozenset(name for _, name, _ in named_claims(pod) if name)


LONGEST_SPEC_BYTES = 64 * 1024
"""Of what a claim asks for, as JSON, without what it tells other drivers. An ordinary one has some 300 bytes; the API
server takes 1.5 MiB, and as Python objects they can be four times as long."""

UID_LENGTH = 64
"""Characters of a UID that are kept: Kubernetes' own have 36, and users can write others."""

MOST_FINALIZERS = 8
"""Of one object, that are kept: users write as many as they like."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One request of a claim, or one of the alternatives among which it leaves the choice."""

    name: str
    """Of the request; `request/alternative` of an alternative."""
    device_class: str
    selectors: tuple[str, ...] = ()
    mode: str = "ExactCount"
    count: int = 1
    capacity: tuple[tuple[str, str], ...] = ()
    """Name of a capacity -> quantity."""
    admin_access: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """Values that the cards of several requests must share, or must not share."""

    attribute: str
    """Qualified name."""
    distinct: bool
    requests: tuple[str, ...] = ()
    """Names of requests; none: all of the claim."""


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """Parameters for our driver, as text of JSON."""

    parameters: str
    requests: tuple[str, ...] = ()
    """Names of requests; none: all of the claim."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ClaimSpec:
    """The `spec.devices` of a claim, or of the claims of a template."""

    requests: tuple[tuple[Wish, ...], ...]
    """For each request its alternatives, in the order of preference: one, if it leaves no choice."""
    constraints: tuple[Constraint, ...] = ()
    config: tuple[OpaqueConfig, ...] = ()
    size_bytes: int = field(default=0, compare=False)
    """As JSON."""
    refused: str = ""
    """Why it was not read, and what to do; then there is nothing else of it."""

    def check(self, what: str) -> None:
        """Raise BadInput, which names `what`, if it was not read."""
        if self.refused:
            raise BadInput(f"{what}: {self.refused}")

    def classes(self) -> frozenset[str]:
        """Return the names of the DeviceClasses of all requests."""
        return frozenset(wish.device_class for wishes in self.requests for wish in wishes)


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass: an administrator's selectors and parameters."""

    name: str
    selectors: tuple[str, ...] = ()
    config: tuple[OpaqueConfig, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Return whether its devices are our cards.

        No selector can choose our devices without naming the driver, or the domain of their attributes, which is the
        same; a class that names neither chooses among the devices of others.
        """
        return self.name == DEVICE_CLASS or any(DRIVER in expression for expression in self.selectors)


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim as it is stored."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    spec: ClaimSpec
    is_being_deleted: bool = False
    owner: str = ""
    """UID of the pod that it was made for; empty: it stands for itself."""
    finalizers: tuple[str, ...] | None = ()
    """None: more than are kept."""
    node_name: str = ""
    """Pool of its allocation's results of our driver, which is the node; empty if it has none."""
    drivers: frozenset[str] = frozenset()
    """Drivers whose devices are allocated to it; none if it is not allocated."""
    reserved_for: tuple[str, ...] = ()
    """UIDs of the pods that may use it."""

    @property
    def is_allocated(self) -> bool:
        """Return whether it has devices, of whichever driver."""
        return bool(self.drivers)


class ClaimObjects(Protocol):
    """The objects that say what pods' claims ask for, as far as they are known."""

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Return a ResourceClaim, None if there is none. Raises BadInput for one that asks in too many words."""

    def template(self, namespace: str, name: str) -> ClaimSpec | None:
        """Return the spec of the claims of a ResourceClaimTemplate, None if there is no such template.

        Raises BadInput likewise.
        """

    def device_class(self, name: str) -> DeviceClass | None:
        """Return a DeviceClass, None if there is none."""

    def serves_other_drivers(self, scheduler_name: str) -> bool:
        """Return whether a pod of this scheduler profile gets claims of other drivers as well, from kube-scheduler."""

    def holder_of(self, claim: Claim) -> str:
        """Return the UID of the pod that holds the claim's cards in the ledger; empty if none does."""

    def payer(self, namespace: str, /) -> Payer | None:
        """Return the payer for selectors of a namespace's pods; None where no other pods wait meanwhile."""


def read_claim(claim: JsonMapping) -> Claim:
    """Return a ResourceClaim. Raises KeyError, TypeError or AttributeError for what is none."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    results = devices.get("results") or ()
    ours = [result["pool"] for result in results if result["driver"] == DRIVER]
    finalizers = metadata.get("finalizers") or ()
    return Claim(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=str(metadata["resourceVersion"]),
        spec=read_spec(claim.get("spec") or {}),
        is_being_deleted=bool(metadata.get("deletionTimestamp")),
        owner=_owner(metadata),
        finalizers=tuple(finalizers) if len(finalizers) <= MOST_FINALIZERS else None,
        node_name=ours[0] if ours else "",
        drivers=frozenset(result["driver"] for result in results),
        reserved_for=tuple(each["uid"][:UID_LENGTH] for each in status.get("reservedFor") or ()),
    )


def _owner(metadata: JsonMapping) -> str:
    owners = (each for each in metadata.get("ownerReferences") or () if each.get("controller"))
    return next((str(each["uid"])[:UID_LENGTH] for each in owners if each.get("kind") == "Pod"), "")


def read_template(template: JsonMapping) -> ClaimSpec:
    """Return the spec of the claims of a ResourceClaimTemplate."""
    return read_spec((template.get("spec") or {}).get("spec") or {})


def read_spec(spec: JsonMapping) -> ClaimSpec:
    """Return the spec of a claim. Equal specs are one object; one that is too long carries its refusal.

    Parameters so deep that they can't be written again are no parameters of ours, and read as null.
    """
    devices = spec.get("devices") or {}
    picked = {name: devices.get(name) for name in ("requests", "constraints")}
    config = [each for each in devices.get("config") or () if (each.get("opaque") or {}).get("driver") == DRIVER]
    try:
        text = _text({**picked, "config": config})
    except TypeError:  # beyond the depth that orjson writes, which is less than what it reads
        text = _text({**picked, "config": list(map(_without_parameters, config))})
    if len(text) > LONGEST_SPEC_BYTES:
        return ClaimSpec((), refused=_TOO_LONG.format(len(text), LONGEST_SPEC_BYTES))
    return _spec_of(text)


_TOO_LONG = (
    "what it asks for has {:,} bytes as JSON, and {:,} are the most: write fewer requests, or shorter selectors and "
    "parameters"
)


def _text(devices: JsonMapping) -> bytes:
    return orjson.dumps(devices, option=orjson.OPT_SORT_KEYS)


def _without_parameters(config: JsonMapping) -> JsonMapping:
    return {**config, "opaque": {**(config.get("opaque") or {}), "parameters": None}}


def read_class(device_class: JsonMapping) -> DeviceClass:
    """Return a DeviceClass."""
    spec = device_class.get("spec") or {}
    return DeviceClass(device_class["metadata"]["name"], _selectors(spec), _config(spec))


_specs: WeakValueDictionary[bytes, ClaimSpec] = WeakValueDictionary()
"""Those that are in memory, by a hash of their text: claims come from few templates."""


def _spec_of(text: bytes) -> ClaimSpec:
    key = blake2b(text, digest_size=16).digest()
    found = _specs.get(key)
    if found is None:
        devices = orjson.loads(text)
        found = _specs[key] = ClaimSpec(
            requests=tuple(tuple(_wishes(request)) for request in devices.get("requests") or ()),
            constraints=tuple(_constraint(each) for each in devices.get("constraints") or ()),
            config=_config(devices),
            size_bytes=len(text),
        )
    return found


def _wishes(request: JsonMapping) -> list[Wish]:
    name = str(request["name"])
    if request.get("exactly"):
        return [_wish(name, request["exactly"])]
    return [_wish(f"{name}/{each['name']}", each) for each in request.get("firstAvailable") or ()]


def _wish(name: str, request: JsonMapping) -> Wish:
    capacity = (request.get("capacity") or {}).get("requests") or {}
    return Wish(
        name=name,
        device_class=str(request.get("deviceClassName") or ""),
        selectors=_selectors(request),
        mode=str(request.get("allocationMode") or "ExactCount"),
        count=int(request.get("count") or 1),
        capacity=tuple((str(name), str(amount)) for name, amount in sorted(capacity.items())),
        admin_access=bool(request.get("adminAccess")),
    )


def _selectors(holder: JsonMapping) -> tuple[str, ...]:
    cel = (each.get("cel") or {} for each in holder.get("selectors") or ())
    return tuple(str(each["expression"]) for each in cel if "expression" in each)


def _constraint(constraint: JsonMapping) -> Constraint:
    distinct = constraint.get("distinctAttribute")
    return Constraint(
        attribute=str(distinct or constraint.get("matchAttribute") or ""),
        distinct=bool(distinct),
        requests=tuple(map(str, constraint.get("requests") or ())),
    )


def _config(holder: JsonMapping) -> tuple[OpaqueConfig, ...]:
    found = []
    for each in holder.get("config") or ():
        opaque = each.get("opaque") or {}
        if opaque.get("driver") == DRIVER:
            text = orjson.dumps(opaque.get("parameters")).decode()
            found.append(OpaqueConfig(text, tuple(map(str, each.get("requests") or ()))))
    return tuple(found)


Name = tuple[str, str]  # namespace, name


class ListedClaims:
    """The objects that were read: see ClaimObjects."""

    def __init__(
        self,
        claims: Iterable[JsonMapping] = (),
        templates: Iterable[JsonMapping] = (),
        classes: Iterable[JsonMapping] = (),
        holders: Mapping[str, str] | None = None,
    ) -> None:
        """Make one; `holders` are the pods that the ledger has cards for by a claim: UID of the claim -> of the pod."""
        self.claims: dict[Name, Claim] = {}
        self._templates: dict[Name, ClaimSpec] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._holders = dict(holders or {})
        self.add(claims, templates, classes)

    def add(
        self,
        claims: Iterable[JsonMapping] = (),
        templates: Iterable[JsonMapping] = (),
        classes: Iterable[JsonMapping] = (),
    ) -> None:
        """Read objects, as from a page of a list: none of them is kept."""
        self.claims |= {(each.namespace, each.name): each for each in map(read_claim, claims)}
        self._templates |= {_name(each): read_template(each) for each in templates}
        self._classes |= {each.name: each for each in map(read_class, classes)}

    def merged(self, others: ListedClaims) -> ListedClaims:
        """Return the union of both; of two objects of one name, the other's."""
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
        """See ClaimObjects. A reader passes over the claims of other drivers, whichever scheduler serves them."""
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


NO_CLAIM_OBJECTS: Final = ListedClaims()
"""Where no objects are known."""


def _name(obj: JsonMapping) -> Name:
    return str(obj["metadata"].get("namespace") or ""), str(obj["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class UsedClaim:
    """A claim of the pod that is served by us."""

    name: str
    """In the pod."""
    requests: tuple[str, ...]
    shared: bool


def check_containers(pod: JsonMapping, claims: Sequence[UsedClaim], with_resources: Collection[str]) -> None:
    """Raise BadInput if a container would need several of our devices.

    `with_resources` are the names of the containers that ask for cards by their own resources.
    """
    by_name = {claim.name: claim for claim in claims}
    used: dict[str, set[tuple[str, str]]] = {}  # container -> its requests, each by claim and name
    for container in all_containers(pod):
        for each in (container.get("resources") or {}).get("claims") or ():
            claim = by_name.get(str(each.get("name")))
            if claim is not None:
                used.setdefault(str(container["name"]), set()).update(_requests(claim, each.get("request")))
    for name, requests in used.items():
        if name in with_resources:
            raise BadInput(f"container {name} asks for GPUs by its resources and by a claim: let it ask in one way")
        if len({frozenset(other for other in used if each in used[other]) for each in requests}) > 1:
            raise BadInput(
                f"container {name} uses requests of claims of which other containers use only some: let each container "
                "use one request, or all of them the same ones"
            )
        of_claims = {claim for claim, _ in requests}
        if len(of_claims) > 1 and any(by_name[claim].shared for claim in of_claims):
            raise BadInput(f"container {name} uses a claim that pods share and another one: give each a container")


def _requests(claim: UsedClaim, named: object) -> set[tuple[str, str]]:
    """Return the requests of a claim that a container uses; of a claim that pods share, it gets all."""
    if claim.shared or not named:
        return {(claim.name, each) for each in claim.requests}
    return {(claim.name, str(named))}
