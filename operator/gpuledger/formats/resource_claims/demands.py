"""From the ResourceClaims of a pod to demands of cards.

Parameters are an object of apiVersion gpuledger.dev/v1alpha1 and kind Share in the claim's opaque configuration, such
as {..., memoryMiB: 10240, cores: 30}: what the fields of a request can't say. Before Kubernetes 1.36, the API server
drops `capacity` from requests, so amounts have to be here. Where both have an amount, the request's own field counts,
because the API server has checked it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice, product
from typing import Any, Final

import orjson

from gpuledger.formats.custom_resource.stored_card import API_VERSION, MAX_CORES, MAX_MEMORY_MIB
from gpuledger.formats.quantity import MIB, amount, whole_number
from gpuledger.formats.resource_claims.claims import (
    CORES,
    DRIVER,
    MEMORY,
    MOST_CLAIMS,
    SLOTS,
    Claim,
    ClaimObjects,
    ClaimSpec,
    DeviceClass,
    UsedClaim,
    Wish,
    check_containers,
    claim_names,
)
from gpuledger.formats.resource_claims.slices import device_of
from gpuledger.model.card import ALL_CORES, ATTRIBUTES, Card, CardFilter, CardRule, CardTest
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.request import MAX_CARDS, MAX_ENTRIES, Demand, JoinedClaim, Lifetime, PodClaim

KIND: Final = "Share"


@dataclass(frozen=True, slots=True)
class ShareParameters:
    """A claim's parameters for each of its cards; None and empty: unset."""

    memory_mib: int | None = None
    memory_percent: int | None = None
    cores: int | None = None
    """Percent of the card."""
    exclusive: bool | None = None
    """Alone on the card."""
    models: tuple[str, ...] = ()
    """Parts of names, compared without case, as with the annotation use-gputype."""
    avoid_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    isolation: tuple[str, ...] = ()
    """Modes of cards."""
    one_numa_node: bool | None = None


_NUMBERS: Final = {
    "memoryMiB": ("memory_mib", 1, MAX_MEMORY_MIB),
    "memoryPercent": ("memory_percent", 1, 100),
    "cores": ("cores", 0, ALL_CORES),
}
_WAYS_OF_MEMORY: Final = frozenset(("memory_mib", "memory_percent"))
_SWITCHES: Final = {"exclusive": "exclusive", "oneNUMANode": "one_numa_node"}
_LISTS: Final = {
    "models": "models",
    "avoidModels": "avoid_models",
    "uuids": "uuids",
    "avoidUUIDs": "avoid_uuids",
    "isolation": "isolation",
}
KEYS: Final = (*_NUMBERS, *_SWITCHES, *_LISTS)

LONGEST_ENTRY = 253


def share_parameters(texts: Iterable[str]) -> ShareParameters:
    """Return several parameters as one, a later one before an earlier one.

    Raises BadInput, naming the field and what to write instead.
    """
    found = ShareParameters()
    for text in texts:
        given = _read(text)
        if len(_WAYS_OF_MEMORY & given.keys()) > 1:
            raise BadInput("memoryMiB and memoryPercent are two ways to say one amount: keep one of them")
        if _WAYS_OF_MEMORY & given.keys():  # a claim may say otherwise what its class says in the other way
            found = replace(found, memory_mib=None, memory_percent=None)
        found = replace(found, **given)
    return found


def _read(text: str) -> dict[str, Any]:
    given = orjson.loads(text)
    if not isinstance(given, Mapping):
        raise BadInput(f"the parameters of the configuration are no object of kind {KIND}")
    version, kind = given.get("apiVersion"), given.get("kind")
    if (version, kind) != (API_VERSION, KIND):
        raise BadInput(
            f"the configuration has apiVersion {_shown(version)} and kind {_shown(kind)}: "
            f"write {API_VERSION} and {KIND}"
        )
    return dict(_field(key, value) for key, value in given.items() if key not in ("apiVersion", "kind"))


def _field(key: str, value: object) -> tuple[str, Any]:
    if key in _NUMBERS:
        name, least, most = _NUMBERS[key]
        if type(value) is not int or not least <= value <= most:
            raise BadInput(
                f"{key} of the configuration is {_shown(value)}: write a whole number from {least} to {most}"
            )
        return name, value
    if key in _SWITCHES:
        if not isinstance(value, bool):
            raise BadInput(f"{key} of the configuration is {_shown(value)}: write true or false")
        return _SWITCHES[key], value
    if key in _LISTS:
        return _LISTS[key], _entries(key, value)
    raise BadInput(f"the configuration has no field {_shown(key)}: there are {', '.join(KEYS)}")


def _entries(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise BadInput(f"{key} of the configuration is no list of words")
    if len(value) > MAX_ENTRIES or any(len(each) > LONGEST_ENTRY for each in value):
        raise BadInput(f"{key} of the configuration has more than {MAX_ENTRIES} words, or one that is too long")
    return tuple(value)


def _shown(value: object) -> str:
    return repr(value)[:64]


assert {*(name for name, _, _ in _NUMBERS.values()), *_SWITCHES.values(), *_LISTS.values()} == {  # noqa: S101
    each.name for each in fields(ShareParameters)
}


MOST_ALTERNATIVES = 8
"""Ways to serve all claims of a pod, of which each can mean another search over all nodes."""

EXACT_COUNT, ALL = "ExactCount", "All"
"""Values of allocationMode."""

MOST_CONSTRAINTS = 32
"""Of one claim: the API server's limit."""

MOST_SELECTORS, MOST_SELECTOR_BYTES = 64, 32 * 1024
"""Different selectors of all claims of a pod, those of DeviceClasses apart. Each is compiled, and then evaluated for
each kind of card."""

_ONLY_THE_DRIVER = re.compile(rf"""^\s*device\.driver\s*==\s*(["']){re.escape(DRIVER)}\1\s*$""")
"""The selector of our DeviceClass: it holds for all cards."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a claim, as one demand of a pod."""

    name: str
    """`<claim in the pod>/<request>`, or `<claim in the pod>/<request>/<alternative>`."""
    demand: Demand


def check_selectors(specs: Iterable[ClaimSpec]) -> None:
    """Raise BadInput if the claims of a pod have more selectors than one pod may have, or longer ones."""
    texts = {text for spec in specs for wishes in spec.requests for wish in wishes for text in wish.selectors}
    size = sum(len(text.encode(errors="replace")) for text in texts)
    if len(texts) > MOST_SELECTORS or size > MOST_SELECTOR_BYTES:
        raise BadInput(
            f"the pod's claims have {len(texts)} different selectors of {size} bytes together, and may have "
            f"{MOST_SELECTORS} of {MOST_SELECTOR_BYTES}: write fewer and shorter ones, or put them into a DeviceClass"
        )


def claim_alternatives(
    claim_name: str,
    number: int,
    spec: ClaimSpec,
    objects: ClaimObjects,
    chosen: CardFilter,
    lifetime: Lifetime,
    namespace: str = "",
) -> list[tuple[Entry, ...]]:
    """Return the ways to serve a claim of our classes, the preferred first.

    `number` tells the claims of a pod apart. Selectors are not compiled yet where a namespace pays for that: see
    `ClaimObjects.payer`. Raises BadInput, naming the claim and its request.
    """
    reader = _Reader(claim_name, number, spec, objects, chosen, lifetime, namespace)
    # One alternative of each request; earlier requests keep their first choices for longer.
    ways = list(islice(product(*spec.requests), MOST_ALTERNATIVES + 1))
    if len(ways) > MOST_ALTERNATIVES:
        raise BadInput(f"claim {claim_name} can be served in more than {MOST_ALTERNATIVES} ways: name fewer of them")
    return [tuple(reader.entry(wish) for wish in way) for way in ways]


@dataclass(slots=True)
class _Reader:
    """Reads the requests of one claim."""

    claim_name: str
    number: int
    spec: ClaimSpec
    objects: ClaimObjects
    chosen: CardFilter
    lifetime: Lifetime
    namespace: str
    entries: dict[int, Entry] = field(default_factory=dict)
    """Identity of a wish -> its entry, the same in all ways."""
    tests: dict[str, CardTest] = field(default_factory=dict)
    """Expression -> its test."""

    def entry(self, wish: Wish) -> Entry:
        """Return one request, or one alternative of it, as a demand."""
        found = self.entries.get(id(wish))
        if found is not None:
            return found
        try:
            found = self.entries[id(wish)] = Entry(f"{self.claim_name}/{wish.name}", self._demand(wish))
            return found
        except BadInput as error:
            raise BadInput(f"claim {self.claim_name}, request {wish.name}: {error}") from None

    def _demand(self, wish: Wish) -> Demand:
        device_class = self.objects.device_class(wish.device_class)
        if device_class is None:
            raise BadInput(f"there is no DeviceClass {wish.device_class}")
        if not device_class.is_ours:
            raise BadInput(
                f"DeviceClass {wish.device_class} has no GPUs of {DRIVER}: a claim is served by one driver, "
                "so put it into a claim of its own"
            )
        if wish.admin_access:
            raise BadInput("adminAccess is not given: a pod on a card is counted like any other, so drop it")
        if wish.mode not in (EXACT_COUNT, ALL):
            raise BadInput(f"allocationMode {wish.mode} is not known: write {EXACT_COUNT} or {ALL}")
        if wish.count > MAX_CARDS:
            raise BadInput(f"no node has {wish.count} cards")
        parameters = self._parameters(wish, device_class)
        return replace(
            _amounts(wish, parameters),
            cards=wish.count if wish.mode == EXACT_COUNT else 1,
            every_card=wish.mode == ALL,
            rules=self._rules(wish),
            lifetime=self.lifetime,
            resource=DRIVER,
            wanted=self._wanted(wish, device_class, parameters),
            one_numa_node=bool(parameters.one_numa_node),
        )

    def _rules(self, wish: Wish) -> tuple[CardRule, ...]:
        """Return the constraints that concern a request. A name of one's own without a domain is the driver's."""
        found = []
        for number, each in enumerate(self.spec.constraints):
            if each.requests and not {wish.name, wish.name.partition("/")[0]} & {*each.requests}:
                continue
            if each.attribute not in ATTRIBUTES:
                raise BadInput(f"cards have no attribute {each.attribute}: there are {', '.join(ATTRIBUTES)}")
            found.append(CardRule(each.attribute, self.number * MOST_CONSTRAINTS + number, each.distinct))
        return tuple(found)

    def _parameters(self, wish: Wish, device_class: DeviceClass) -> ShareParameters:
        named = {wish.name, wish.name.partition("/")[0]}
        own = (each for each in self.spec.config if not each.requests or named & {*each.requests})
        return share_parameters(each.parameters for each in (*device_class.config, *own))

    def _wanted(self, wish: Wish, device_class: DeviceClass, parameters: ShareParameters) -> CardFilter:
        chosen, expressions = self.chosen, dict.fromkeys((*device_class.selectors, *wish.selectors))
        needed = [each for each in expressions if not _ONLY_THE_DRIVER.match(each)]
        return replace(
            chosen,
            use_models=(*chosen.use_models, *parameters.models),
            avoid_models=(*chosen.avoid_models, *parameters.avoid_models),
            use_uuids=(*chosen.use_uuids, *parameters.uuids),
            avoid_uuids=(*chosen.avoid_uuids, *parameters.avoid_uuids),
            modes=parameters.isolation or chosen.modes,
            tests=tuple(self._test(each, wish) for each in needed),
        )

    def _test(self, expression: str, wish: Wish) -> CardTest:
        """Return an expression as a test of cards. Raises BadInput without a payer, if it can't be compiled."""
        # Only here: its library is not needed otherwise.
        from gpuledger.formats.resource_claims.selectors import SelectorTest

        found = self.tests.get(expression)
        if found is None:
            payer = self.objects.payer(self.namespace)
            if payer is None:
                SelectorTest(expression, _device_of, where="selector").compile()
            where = f"claim {self.claim_name}, request {wish.name}: selector"
            test = SelectorTest(expression, _device_of, self.namespace, where, payer)
            found = self.tests[expression] = test
        return found


def _device_of(card: Card) -> Mapping[str, object]:
    return {**device_of(card), "driver": DRIVER}


def _amounts(wish: Wish, parameters: ShareParameters) -> Demand:
    """Return the demand on each card; a request without amounts asks for whole cards."""
    asked = {name.removeprefix(f"{DRIVER}/"): quantity for name, quantity in wish.capacity}
    unknown = sorted(asked.keys() - {MEMORY, CORES, SLOTS})
    if unknown:
        raise BadInput(f"cards have no capacity {unknown[0]}: there are {MEMORY}, {CORES}, and {SLOTS}")
    if _whole(SLOTS, asked.get(SLOTS, "1")) != 1:
        raise BadInput(f"{SLOTS}: a share takes one; to be alone on a card, ask for {ALL_CORES} {CORES}")
    memory_mib, percent = _memory_mib(asked.get(MEMORY)), None
    if memory_mib is None:
        memory_mib, percent = parameters.memory_mib, parameters.memory_percent
    cores = _cores(asked.get(CORES))
    if cores is None:
        cores = parameters.cores
    is_whole = memory_mib is None and percent in (None, 100) and cores is None
    exclusive = (is_whole or cores == ALL_CORES) if parameters.exclusive is None else parameters.exclusive
    return Demand(
        cards=wish.count,
        memory_mib=memory_mib,
        memory_percent=100 if percent is None else percent,
        cores=cores or 0,
        exclusive=exclusive or cores == ALL_CORES,
    )


def _memory_mib(quantity: str | None) -> int | None:
    if quantity is None:
        return None
    try:
        memory_mib = -(-amount(quantity, 1) // MIB)
    except BadInput as error:
        raise BadInput(f"{MEMORY}: {error}") from None
    if not 1 <= memory_mib <= MAX_MEMORY_MIB:
        raise BadInput(f"{MEMORY}: {quantity} is not between 1Mi and {MAX_MEMORY_MIB}Mi; write it in bytes, as 10Gi")
    return memory_mib


def _cores(quantity: str | None) -> int | None:
    if quantity is None:
        return None
    cores = _whole(CORES, quantity)
    if cores > min(ALL_CORES, MAX_CORES):
        raise BadInput(f"{CORES}: {quantity} is more than {ALL_CORES} percent, which is a whole card")
    return cores


def _whole(name: str, quantity: str) -> int:
    try:
        return whole_number(quantity)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class ClaimsOfPod:
    """The demands of a pod's claims."""

    ways: tuple[tuple[Entry, ...], ...]
    """The ways to serve the claims that are to be allocated, the preferred first; one without entries if none is."""
    claims: tuple[PodClaim, ...] = ()
    joined: tuple[JoinedClaim, ...] = ()


NO_CLAIMS = ClaimsOfPod(ways=((),))


def claims_of_pod(
    pod: JsonMapping, objects: ClaimObjects, chosen: CardFilter, with_resources: Collection[str] = ()
) -> ClaimsOfPod:
    """Return the demands of a pod's claims; claims of other drivers are passed over where its scheduler serves them.

    A pod that has its node may have an allocation of other drivers there. `chosen` is the pod's own choice of cards,
    `with_resources` are the containers that ask for cards by their resources, too. Raises BadInput, naming the claim
    and what to write instead.
    """
    is_bound = bool((pod.get("spec") or {}).get("nodeName"))
    given = list(islice(claim_names(pod), MOST_CLAIMS + 1))
    if len(given) > MOST_CLAIMS:
        raise BadInput(f"the pod has more than {MOST_CLAIMS} ResourceClaims: spread them over several pods")
    lifetime = _lifetime(pod)
    leaves_others = objects.serves_other_drivers(str(pod["spec"].get("schedulerName") or ""))
    asking: list[tuple[int, PodClaim, ClaimSpec]] = []
    joined = []
    for number, names in enumerate(given):
        found = _resolved(pod, *names, objects, is_bound)
        if isinstance(found, JoinedClaim):
            joined.append(found)
        elif found is not None and _is_ours(found, objects, leaves_others or is_bound):
            assert isinstance(found.wishes, ClaimSpec)  # noqa: S101 - that is what _resolved puts there
            asking.append((number, found, found.wishes))
    claims, namespace = [claim for _, claim, _ in asking], str(pod["metadata"]["namespace"])
    if not is_bound:
        check_selectors(spec for _, _, spec in asking)
    alternatives = [
        claim_alternatives(claim.name, number, spec, objects, chosen, lifetime, namespace)
        for number, claim, spec in asking
    ]
    _check_nodes(joined)
    if not is_bound:
        check_containers(
            pod, [*map(_used, claims), *(UsedClaim(each.name, ("",), True) for each in joined)], with_resources
        )
    ways = list(islice(product(*alternatives), MOST_ALTERNATIVES + 1))
    if len(ways) > MOST_ALTERNATIVES:
        raise BadInput(f"the pod's claims can be served in more than {MOST_ALTERNATIVES} ways: name fewer of them")
    entries = tuple(tuple(entry for part in way for entry in part) for way in ways)
    return ClaimsOfPod(entries, tuple(claims), tuple(joined))


def _lifetime(pod: JsonMapping) -> Lifetime:
    """Return how long claims are held: from the pod's first container on, to its end."""
    return Lifetime.SIDECAR if (pod.get("spec") or {}).get("initContainers") else Lifetime.MAIN


def _resolved(
    pod: JsonMapping, name: str, object_name: str, template: str, objects: ClaimObjects, is_bound: bool
) -> PodClaim | JoinedClaim | None:
    """Return a claim of the pod as far as it is known; None for one that asks for nothing. Raises BadInput.

    The names are those of `claim_names`.
    """
    namespace, uid = str(pod["metadata"]["namespace"]), str(pod["metadata"]["uid"])
    stored = objects.claim(namespace, object_name) if object_name else None
    if stored is not None:
        return _of_object(name, stored, uid, objects, bool(template), is_bound)
    if template and object_name and not is_bound:
        raise BadInput(
            f"claim {name}: ResourceClaim {object_name}, which was made for the pod, is not there; if it was deleted, "
            "Kubernetes before 1.37 makes no other one: create the pod anew"
        )
    spec = objects.template(namespace, template) if template else None
    if spec is None:
        missing = f"ResourceClaimTemplate {template}" if template else f"ResourceClaim {object_name}"
        raise BadInput(f"claim {name}: there is no {missing} in namespace {namespace}")
    return PodClaim(name, object_name, wishes=spec) if spec.requests else None


def _of_object(
    name: str, stored: Claim, pod_uid: str, objects: ClaimObjects, is_made: bool, is_bound: bool
) -> PodClaim | JoinedClaim | None:
    if stored.owner not in ("", pod_uid) or (is_made and stored.owner != pod_uid):
        raise BadInput(f"claim {name}: ResourceClaim {stored.name} was made for another pod")
    if not stored.spec.requests or (is_bound and stored.is_allocated and DRIVER not in stored.drivers):
        return None
    holder = objects.holder_of(stored)
    if holder and holder != pod_uid:
        return JoinedClaim(name, stored.name, stored.uid, stored.node_name)
    if stored.is_being_deleted and not is_bound:  # who uses it keeps it
        raise BadInput(f"claim {name}: ResourceClaim {stored.name} is being deleted")
    return PodClaim(name, stored.name, stored.uid, not is_made, stored.spec)


def _is_ours(claim: PodClaim, objects: ClaimObjects, leaves_others: bool) -> bool:
    """Return whether a claim asks for our cards. Raises BadInput if no driver serves it here."""
    assert isinstance(claim.wishes, ClaimSpec)  # noqa: S101 - see above
    classes = {name: objects.device_class(name) for name in claim.wishes.classes()}
    if any(found is None or found.is_ours for found in classes.values()):
        return True
    if leaves_others:
        return False
    raise BadInput(
        f"claim {claim.name} is of DeviceClass {min(classes)}, which has no GPUs of {DRIVER}: this scheduler "
        "profile serves no other driver"
    )


def _used(claim: PodClaim) -> UsedClaim:
    spec = claim.wishes
    assert isinstance(spec, ClaimSpec)  # noqa: S101 - see above
    requests = dict.fromkeys(wish.name.partition("/")[0] for wishes in spec.requests for wish in wishes)
    return UsedClaim(claim.name, tuple(requests), claim.shared)


def _check_nodes(joined: list[JoinedClaim]) -> None:
    nodes = {each.node_name: each for each in joined}
    if len(nodes) > 1:
        first, second = list(nodes.values())[:2]
        raise BadInput(
            f"claims {first.name} and {second.name} are allocated on different nodes, {first.node_name} and "
            f"{second.node_name}: wait until the other pods of one of them have ended"
        )
