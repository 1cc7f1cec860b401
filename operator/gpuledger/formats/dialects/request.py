"""Pods' requests: the resources of their containers in any vocabulary, and their ResourceClaims.

Resources that a container omits have defaults. Some vendors have sizes that others do not: templates by their units of
compute, modules of cards, bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from gpuledger.formats.custom_resource.stored_card import MAX_MEMORY_MIB
from gpuledger.formats.dialects.selection import Selection, selection
from gpuledger.formats.dialects.vocabulary import Dialects, Several, Template, Vocabulary, demand_of_totals, in_use
from gpuledger.formats.quantity import amount, host_request, whole_number
from gpuledger.formats.resource_claims.claims import ClaimObjects, has_claims
from gpuledger.formats.resource_claims.demands import NO_CLAIMS, ClaimsOfPod, Entry, claims_of_pod
from gpuledger.model.card import ALL_CORES, CardFilter
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.node import Counted
from gpuledger.model.request import ANY_NVIDIA, MAX_CARDS, Demand, Lifetime, PodRequest

BYTES = ("i", "M", "G", "T", "P", "E")
"""Ends of a quantity that is in bytes. The API server writes `k` at the end of any number of thousands."""


def memory_in_bytes_mib(given: object) -> int | None:
    """Return an amount with a suffix, such as 2Gi, in MiB, rounded up; None for a plain number.

    Raises BadInput for a text that is no amount, or for more than a card can have.
    """
    if not isinstance(given, str) or not given.endswith(BYTES):
        return None
    memory_mib = -(-amount(given, 1) // 2**20)
    if memory_mib > MAX_MEMORY_MIB:
        raise BadInput(f"{given} is more than {MAX_MEMORY_MIB} MiB")
    return memory_mib


def whole_modules(cards: int, module: int) -> tuple[int, str]:
    """Return the number of cards that a container gets where they come in modules, and what to tell of it.

    Raises BadInput for more than one card that leave a part of a module.
    """
    if cards % module == 0:
        return cards, ""
    if cards > 1:
        raise BadInput(f"{cards} is no multiple of {module}: these cards come in modules of {module}")
    return module, f"these cards come in modules of {module}, so it gets {module}"


def template_of_units(units: int, vocabulary: Vocabulary) -> Template:
    """Return the template with exactly so many units of compute. Raises BadInput if there is none."""
    found = next((each for each in vocabulary.templates if each.core_units == units), None)
    if found is None:
        sizes = ", ".join(str(each.core_units) for each in vocabulary.templates)
        raise BadInput(f"{units} can't be cut; choose one of {sizes}")
    return found


def template_for(memory_mib: int, cores: int, vocabulary: Vocabulary) -> Template | None:
    """Return the smallest template with this memory and these percents of the cores, None if it takes a whole card."""
    enough = (each for each in vocabulary.templates if memory_mib <= each.memory_mib)
    return next((each for each in enough if cores <= cores_of(each, vocabulary)), None)


def templated(template: Template, vocabulary: Vocabulary, resource: str) -> Demand:
    """Return the demand of a template on one card."""
    cores = cores_of(template, vocabulary)
    return Demand(1, template.memory_mib, cores=cores, exclusive=cores == ALL_CORES, resource=resource)


def cores_of(template: Template, vocabulary: Vocabulary) -> int:
    """Return the cores of a template, in percent of the card."""
    return template.core_units * ALL_CORES // vocabulary.cores_of_card


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container's request, and the parts of it that are defaults."""

    name: str
    demand: Demand
    vocabulary: str
    defaults: frozenset[str]
    """Of "gpus", "memory" and "cores": what the container left out."""
    warnings: tuple[str, ...] = ()


def reader_of(container: JsonMapping, dialects: Dialects) -> ContainerReader | None:
    """Return the reader of a container's request, None if it names none of the resources. Raises BadInput."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    named = [name for name in asked if name in dialects.by_name]
    if not named:
        return None
    vocabulary = _vocabulary(container, in_use(dialects, named), named)
    counts = [name for name in named if any(name == each.count for each in dialects.by_name[name])]
    if len(counts) > 1:
        raise BadInput(f"container {container['name']} counts its cards twice, as {' and as '.join(counts)}: keep one")
    return ContainerReader(container, asked, vocabulary, counts[0] if counts else "")


def _vocabulary(container: JsonMapping, used: Sequence[Vocabulary], named: Sequence[str]) -> Vocabulary:
    """Return the vocabulary of a container: whose words stand beside the count; else the first that has the count."""
    if len({each.vendor for each in used}) > 1 or len({each.model for each in used}) > 1:
        raise BadInput(
            f"container {container['name']} asks for cards of several kinds ({', '.join(named)}): "
            "a container gets cards of one kind, so give each kind a container of its own"
        )
    telling = [each for each in used if any(name in each.request_names for name in named)]
    if len(telling) > 1:
        mixed = ", ".join(name for name in named if any(name in each.request_names for each in telling))
        raise BadInput(
            f"container {container['name']} mixes the words of {' and '.join(each.name for each in telling)} "
            f"({mixed}): keep one of them"
        )
    return (telling or used)[0]


class ContainerReader:
    """Reads one container in one vocabulary."""

    def __init__(self, container: JsonMapping, asked: JsonMapping, vocabulary: Vocabulary, count_name: str) -> None:
        self._where = f"container {container['name']}"
        self._container = container
        self._asked = asked
        self.vocabulary = vocabulary
        self._count_name = count_name
        self._warnings: list[str] = []

    def read(self) -> ContainerRequest | None:
        """Return the request, None for no card. Raises BadInput."""
        vocabulary = self.vocabulary
        if vocabulary.totals:
            return self._of_totals()
        for name in vocabulary.refused:
            if name in self._asked:
                raise BadInput(f"{self._where}, {name}: {vocabulary.name} can't be asked for that here; drop it")
        if vocabulary.count_is_cores:
            return self._one_of_the_templates()
        cards = self._count()
        if cards and cards > 1 and vocabulary.several is Several.WHOLE:
            if vocabulary.templates:
                self._memory_mib()  # whose largest amount is known: what is more is a mistake here, too
            return self._whole_ones(cards)
        return self._share(cards)

    def _share(self, cards: int | None) -> ContainerRequest | None:
        vocabulary = self.vocabulary
        memory, percent = self._memory_mib(), self._percent()
        cores = self._cores()
        if vocabulary.cores_span_cards and cores and cores > ALL_CORES:
            return self._spanning(cores)
        if cards == 0:
            if memory or percent or cores:
                raise BadInput(
                    f"{self._where} asks for GPU memory or cores on 0 GPUs: "
                    f"set {self._count_name} to 1 or more, or drop the rest"
                )
            return None
        named = {"gpus": cards is not None, "memory": memory or percent, "cores": cores is not None}
        defaults = frozenset(name for name, itself in named.items() if not itself)
        if cards is None:
            cards = vocabulary.default_gpus
            if not cards:
                raise BadInput(
                    f"{self._where} asks for a share of GPUs, but not for a number of them: set {vocabulary.count}"
                )
        if memory and percent:
            memory, percent = self._one_of(memory, percent)
        return self._request(self._cut(cards, memory, percent, cores), defaults)

    def _request(self, demand: Demand, defaults: frozenset[str]) -> ContainerRequest:
        return ContainerRequest(
            str(self._container["name"]), demand, self.vocabulary.name, defaults, tuple(self._warnings)
        )

    def _count(self) -> int | None:
        """Return the number of cards; where they come in modules, that of whole modules."""
        cards = self._amount(self._count_name, MAX_CARDS, "the number of different cards")
        if not cards:
            return cards
        try:
            cards, told = whole_modules(cards, self.vocabulary.count_multiple)
        except BadInput as error:
            raise BadInput(f"{self._where}, {self._count_name}: {error}") from None
        if told:
            self._warnings.append(f"{self._where}, {self._count_name}: {told}")
        return cards

    def _one_of_the_templates(self) -> ContainerRequest | None:
        """Return the share whose size is the count, or the smallest that has the memory and the cores."""
        vocabulary, where = self.vocabulary, f"{self._where}, {self._count_name}"
        if not self._count_name:
            memory, cores = self._memory_mib() or 0, self._cores() or 0
            if not memory and not cores:
                return None
            found = template_for(memory, cores, vocabulary)
            return self._request(templated(found, vocabulary, "") if found else self._whole(1), frozenset({"gpus"}))
        units = self._amount(self._count_name, vocabulary.cores_of_card, "a number of parts of one card")
        if not units:
            return None
        told = f"{self._count_name} says it already, so it has no effect"
        asked = (name for name in vocabulary.request_names if name in self._asked)
        self._warnings += [f"{self._where}, {name}: {told}" for name in asked]
        try:
            template = template_of_units(units, vocabulary)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
        return self._request(templated(template, vocabulary, self._count_name), frozenset({"memory", "cores"}))

    def _spanning(self, cores: int) -> ContainerRequest:
        """Return so many whole cards: more cores than one has can only be all of each."""
        vocabulary = self.vocabulary
        cards, rest = divmod(cores, ALL_CORES)
        if rest:
            raise BadInput(
                f"{self._where}, {vocabulary.cores}: more than one card has, and no multiple of that: "
                f"ask for {vocabulary.cores_of_card} per card, or fewer of one"
            )
        return self._request(self._whole(cards), frozenset({"gpus", "memory"}))

    def _of_totals(self) -> ContainerRequest | None:
        vocabulary = self.vocabulary
        if self._count_name not in ("", vocabulary.count):
            raise BadInput(
                f"{self._where} says {self._count_name} beside the words of {vocabulary.name}, whose amounts are sums "
                f"over its cards: count them by {vocabulary.count}"
            )
        demand = demand_of_totals(self._where, self._asked, vocabulary)
        if demand is None:
            return None
        left_out = {"gpus": not demand.resource, "cores": not demand.cores and not demand.exclusive}
        defaults = frozenset(name for name, is_left_out in left_out.items() if is_left_out)
        return ContainerRequest(str(self._container["name"]), demand, vocabulary.name, defaults)

    def _cut(self, cards: int, memory: int | None, percent: int | None, cores: int | None) -> Demand:
        vocabulary = self.vocabulary
        if vocabulary.templates and memory:
            template = next((each for each in vocabulary.templates if memory <= each.memory_mib), None)
            if template is None:
                return self._whole(cards)
            memory, cores = template.memory_mib, template.core_units * ALL_CORES // vocabulary.cores_of_card
        memory = memory or (0 if percent else vocabulary.default_memory_mib)
        whole = not memory and percent in (None, 0, ALL_CORES)
        exclusive = whole and cores is None and vocabulary.default_cores in (0, ALL_CORES)
        if exclusive:
            return self._whole(cards)
        if cores is None:
            cores = vocabulary.default_cores
        return Demand(
            cards=cards,
            memory_mib=memory or None,
            memory_percent=ALL_CORES if memory else percent or ALL_CORES,
            cores=cores,
            exclusive=cores == ALL_CORES,
            resource=self._count_name,
            at_most_card=vocabulary.memory_at_most_card and bool(memory),
        )

    def _whole(self, cards: int) -> Demand:
        return Demand(cards, exclusive=True, resource=self._count_name, module=self.vocabulary.count_multiple)

    def _whole_ones(self, cards: int) -> ContainerRequest:
        """Return several whole cards, whatever else is said: HAMi's webhook writes sums over all of them there."""
        vocabulary = self.vocabulary
        self._warn_of_whole(any(name in self._asked for name in vocabulary.request_names))
        named = {"memory": vocabulary.memory, "cores": vocabulary.cores}
        defaults = frozenset(what for what, name in named.items() if name not in self._asked)
        return self._request(self._whole(cards), defaults)

    def _warn_of_whole(self, more_is_said: bool) -> None:
        if more_is_said:
            self._warnings.append(
                f"{self._where} asks for several {self.vocabulary.name}: they are given whole, whatever else it says"
            )

    def _one_of(self, memory: int, percent: int) -> tuple[int | None, int | None]:
        vocabulary = self.vocabulary
        counts, ignored = vocabulary.memory, vocabulary.memory_percentage
        if vocabulary.percentage_first:
            counts, ignored = ignored, counts
        self._warnings.append(
            f"{self._where} says {counts} and {ignored}: the former counts, as with {vocabulary.name}"
        )
        return (None, percent) if vocabulary.percentage_first else (memory, None)

    def _memory_mib(self) -> int | None:
        vocabulary = self.vocabulary
        unit = vocabulary.memory_unit_mib
        if vocabulary.memory_in_bytes:
            try:
                in_bytes = memory_in_bytes_mib(self._asked.get(vocabulary.memory))
            except BadInput as error:
                raise BadInput(f"{self._where}, {vocabulary.memory}: {error} (memory per card)") from None
            if in_bytes is not None:
                return in_bytes
        meaning = "a number of MiB per card" if unit == 1 else f"memory per card in units of {unit} MiB"
        units = self._amount(vocabulary.memory, MAX_MEMORY_MIB // unit, meaning)
        if not units:
            return units
        if vocabulary.memory_choices and units not in vocabulary.memory_choices:
            choices = ", ".join(map(str, vocabulary.memory_choices))
            raise BadInput(f"{self._where}, {vocabulary.memory}: {units} can't be cut; choose one of {choices}")
        memory_mib = units * unit
        if vocabulary.memory_of_card_mib and memory_mib > vocabulary.memory_of_card_mib:
            raise BadInput(
                f"{self._where}, {vocabulary.memory}: {units} is more than a card has, "
                f"{vocabulary.memory_of_card_mib} MiB"
            )
        return memory_mib

    def _percent(self) -> int | None:
        return self._amount(self.vocabulary.memory_percentage, 100, "a percentage of each card's memory")

    def _cores(self) -> int | None:
        vocabulary = self.vocabulary
        of_card = ALL_CORES if vocabulary.cores_in_percent else vocabulary.cores_of_card
        meaning = "a percentage of each card's cores" if of_card == ALL_CORES else f"a number of {of_card} core groups"
        most = MAX_CARDS * of_card if vocabulary.cores_span_cards and not self._count_name else of_card
        units = self._amount(vocabulary.cores, most, meaning)
        # Rounded down: rounded up, all groups of a card could not be given away. More groups than there are never fit.
        return units and units * ALL_CORES // of_card

    def _amount(self, name: str, maximum: int, meaning: str) -> int | None:
        if not name or name not in self._asked:
            return None
        given, where = self._asked[name], f"{self._where}, {name}"
        try:
            amount = whole_number(given)
        except BadInput as error:
            explained = "" if name == self._count_name else f" ({meaning})"
            raise BadInput(f"{where}: {error}{explained}") from None
        if amount > maximum:
            raise BadInput(f"{where}: {given} is more than {maximum}; it is {meaning}")
        return amount


MOST_CONTAINERS = 256
"""Of a pod with GPUs, those without any included: their names stay in memory for as long as it waits."""


def pod_request(pod: JsonMapping, dialects: Dialects, claims: ClaimObjects | None = None) -> PodRequest | None:
    """Return the pod's request, None if it asks for no card.

    Its ResourceClaims count where `claims` is given. Where they can be served in several ways, the first one is
    returned, with the others as its alternatives. Raises BadInput, naming the container or the claim, the resource, and
    what to write instead.
    """
    asking = (each for each in container_requests(pod, dialects) if each is not None)
    found = list(islice(asking, dialects.most_containers + 1))
    with_claims = claims is not None and has_claims(pod)
    if not found and not with_claims:
        return None
    if len(found) > dialects.most_containers:
        raise BadInput(too_many_containers(dialects.most_containers))
    _check_one_container(found, dialects)
    chosen = selection(pod)
    of_claims = NO_CLAIMS
    if claims is not None and with_claims:
        of_claims = claims_of_pod(pod, claims, chosen.cards, {each.name for each in found})
    if not found and not of_claims.claims and not of_claims.joined:
        return None
    first, *others = (_request(pod, dialects, found, chosen, of_claims, way) for way in of_claims.ways)
    return replace(first, alternatives=tuple(others)) if others else first


def _request(
    pod: JsonMapping,
    dialects: Dialects,
    found: Sequence[ContainerRequest],
    chosen: Selection,
    of_claims: ClaimsOfPod,
    way: Sequence[Entry],
) -> PodRequest:
    if len(found) + len(way) > dialects.most_containers:
        raise BadInput(too_many_containers(dialects.most_containers))
    every = list(islice(containers(pod), MOST_CONTAINERS + 1))
    if len(every) > MOST_CONTAINERS:
        raise BadInput(f"the pod has more than {MOST_CONTAINERS} containers: spread them over several pods")
    return PodRequest(
        names=(*(each.name for each in way), *(each.name for each in found)),
        shape=(*(each.demand for each in way), *(each.demand for each in found)),
        all_containers=tuple(str(container["name"]) for container, _ in every),
        init_containers=sum(lifetime is not Lifetime.MAIN for _, lifetime in every),
        node_policy=chosen.node_policy,
        card_policy=chosen.card_policy,
        host=host_request(pod, dialects.elsewhere),
        warnings=(*chosen.warnings, *(warning for each in found for warning in each.warnings)),
        claims=of_claims.claims,
        joined=of_claims.joined,
    )


def _check_one_container(found: Sequence[ContainerRequest], dialects: Dialects) -> None:
    """Raise BadInput if several containers ask for cards whose plugin serves one container of a pod."""
    alone = {each.name for each in dialects.vocabularies if each.one_container}
    asking = [each for each in found if each.vocabulary in alone]
    if len({each.name for each in asking}) > 1:
        raise BadInput(
            f"containers {' and '.join(each.name for each in asking)} ask for cards of {asking[0].vocabulary}, whose "
            "device plugin serves one container of a pod: give each a pod of its own"
        )


def too_many_containers(most: int) -> str:
    """Return the message for a pod that has more containers with cards than that."""
    return f"more than {most} containers of this pod ask for GPUs: spread them over several pods"


def container_requests(pod: JsonMapping, dialects: Dialects) -> Iterator[ContainerRequest | None]:
    """Yield for every container, the init containers first, what it asks for: None for no card. Raises BadInput."""
    chosen: Selection | None = None
    for container, lifetime in containers(pod):
        reader = reader_of(container, dialects)
        request = reader.read() if reader else None
        if reader is None or request is None:
            yield None
            continue
        chosen = chosen or selection(pod)
        wanted = _wanted(pod, reader.vocabulary, chosen)
        demand = replace(request.demand, lifetime=lifetime, wanted=wanted, one_numa_node=chosen.one_numa_node)
        yield replace(request, demand=demand)


def containers(pod: JsonMapping) -> Iterator[tuple[JsonMapping, Lifetime]]:
    """Yield the containers, the init containers first, and when each runs."""
    spec = pod.get("spec") or {}
    for container in spec.get("initContainers") or ():
        yield container, Lifetime.SIDECAR if container.get("restartPolicy") == "Always" else Lifetime.INIT
    for container in spec.get("containers") or ():
        yield container, Lifetime.MAIN


def counted(pod: JsonMapping, dialects: Dialects) -> tuple[Counted, ...]:
    """Return the numbers that the kubelet asks device plugins for, however unreadable the rest of the request is."""
    found: list[Counted] = []
    for container, _ in containers(pod):
        for name, asked in ((container.get("resources") or {}).get("limits") or {}).items():
            counting = next((each for each in dialects.by_name.get(name, ()) if each.count == name), None)
            cards = _cards(asked) if counting else 0
            if counting and cards:
                cards = 1 if counting.count_is_cores else cards
                found.append(Counted(str(container["name"]), name, counting.vendor, cards))
    return tuple(found)


def _cards(amount: object) -> int:
    try:
        return min(whole_number(amount), MAX_CARDS)
    except BadInput:  # "1Ki" is a number to the kubelet, and more than there are
        return MAX_CARDS


def _wanted(pod: JsonMapping, vocabulary: Vocabulary, chosen: Selection) -> CardFilter:
    # The annotations for models and modes are about NVIDIA's cards, as with HAMi.
    chosen_cards = chosen.cards if vocabulary.vendor == ANY_NVIDIA.vendor else ANY_NVIDIA
    wanted = replace(chosen_cards, vendor=vocabulary.vendor, model=vocabulary.model)
    own = {
        "use_uuids": chosen.entries_of(pod, vocabulary.use_uuid),
        "avoid_uuids": chosen.entries_of(pod, vocabulary.avoid_uuid),
        "use_models": chosen.entries_of(pod, vocabulary.use_model),
        "avoid_models": chosen.entries_of(pod, vocabulary.avoid_model),
    }
    return replace(wanted, **{name: getattr(wanted, name) + more for name, more in own.items() if more})
