"""Nodes: annotations in which device plugins list cards, whether these plugins answer, and the pods of agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import ip_address
from typing import Any

import orjson

from gpuledger.formats.custom_resource.stored_card import MAX_LINE, amounts_json, described
from gpuledger.formats.dialects.registers import (
    SCORES_ANNOTATION,
    RegisteredCard,
    capacity_text,
    read_cards,
    read_scores,
)
from gpuledger.formats.dialects.vocabulary import KNOWN_COUNTS, Dialects, NodeRegister
from gpuledger.formats.kubernetes.pod import bound_node, is_ready
from gpuledger.formats.quantity import counted_cards, host_capacity, whole_number
from gpuledger.formats.resource_claims.claims import DRIVER, SERVES_CLAIMS_ANNOTATION
from gpuledger.model.card import Amounts, Card, Links
from gpuledger.model.clock import time_of
from gpuledger.model.errors import BadInput
from gpuledger.model.failure import Failure, FaultClass
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.node import Dialect, NodeOffer
from gpuledger.model.request import NO_HOST, HostAmounts

REGISTER_ANNOTATION = "gpuledger.dev/gpus"
"""On a node: JSON list of {uuid, index, vendor, model, memoryMiB, cores, number, numaNode, pcieRoot, mode, healthy,
links}, and where a card is not healthy, fault: why, in words that stay the same, and failure: {faultClass, since}."""

REPAIRED_ANNOTATION = "gpuledger.dev/cards-repaired"
"""On a node: when a person has repaired its cards last, RFC 3339. Faults that began before are over."""

AGENT_LABEL = "gpuledger.dev/agent"
"""On nodes that run our agent, or are to."""

REPLICAS_LABEL, STRATEGY_LABEL = "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy"
"""By which GPU Feature Discovery says how often NVIDIA's device plugin gives out each card, and as what."""
NOT_SHARED = "none"
"""Of the strategies. The others are `time-slicing` and `mps`."""

CLASSIC_COUNT = "volcano.sh/gpu-number"
NVIDIA = "nvidia"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All that the ledger takes from a Node. Two updates with equal facts are the same to it."""

    name: str
    registers: tuple[tuple[NodeRegister, str], ...]
    """The registers that the node has, as they are: ours alone if there is one. A capacity is one, too."""
    scores: str | None
    """Scores of the links between its cards, from HAMi's device plugin."""
    offered: frozenset[str]
    """Count resources of which some amount is allocatable; the kubelet sets it to 0 when the device plugin is gone."""
    offer: NodeOffer | None
    """The offer of its device plugin; None while that does not answer."""
    host: HostAmounts | None = None
    """Its allocatable CPU and memory, if it reports them; with the number of its cards if only that is known."""
    left_out: tuple[NodeRegister, ...] = ()
    """Capacities that would list the cards of one of the registers a second time."""
    replicated: bool = False
    """Its own device plugin gives out each card several times, so that pods of ours get none by their number."""

    @property
    def takes_pods(self) -> bool:
        """Return whether cards of the node can be given out: it lists them, or its own device plugin counts them."""
        return bool(self.registers) or (self.host is not None and self.host.cards > 0)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The cards of a node's registers that could be read, and a sentence on what could not, or contradicts."""

    cards: tuple[Card, ...]
    problems: tuple[str, ...] = ()


def has_label(node: Mapping[str, Any], label: tuple[str, str] | None) -> bool:
    """Return whether a Node has a label, key and value; each has one that is None."""
    return label is None or ((node.get("metadata") or {}).get("labels") or {}).get(label[0]) == label[1]


def node_facts(node: Mapping[str, Any], dialects: Dialects) -> NodeFacts:
    """Return the facts about a Node. Amounts of other resources are ignored, and so is one that is not a number."""
    metadata, status = node.get("metadata") or {}, node.get("status") or {}
    annotations = metadata.get("annotations") or {}
    if not has_label(node, dialects.node_label):
        host = _counting_host(node, dialects)
        replicated = host is not None and not dialects.replicas_elsewhere and has_replicas(node)
        host = None if replicated else host
        return NodeFacts(metadata.get("name", ""), (), None, frozenset(), None, host, replicated=replicated)
    registers = tuple(_registers(annotations, status, dialects))
    native = tuple(found for found in registers if found[0].dialect is Dialect.NATIVE)
    allocatable = status.get("allocatable") or {}
    listed = {*dialects.counts(), *KNOWN_COUNTS} & allocatable.keys()
    offered = _offered(listed, allocatable, registers)
    chosen = native or _one_for_each_vendor(registers, offered)
    return NodeFacts(
        name=metadata.get("name", ""),
        registers=chosen,
        scores=None if native else annotations.get(SCORES_ANNOTATION),
        offered=offered,
        offer=_offer(
            chosen,
            offered,
            frozenset(listed) - offered,
            dialects,
            serves_claims=annotations.get(SERVES_CLAIMS_ANNOTATION) == "true",
        ),
        host=host_capacity(node),
        left_out=() if native else tuple(_listed_twice(annotations, status, dialects)),
    )


def has_replicas(node: Mapping[str, Any]) -> bool:
    """Return whether the labels of a node say that NVIDIA's device plugin gives out each card several times."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    return labels.get(STRATEGY_LABEL, NOT_SHARED) != NOT_SHARED or labels.get(REPLICAS_LABEL, "1") not in ("0", "1")


def _counting_host(node: Mapping[str, Any], dialects: Dialects) -> HostAmounts | None:
    """Return the amounts of a node without our label whose own device plugin counts cards, and none of ours lists them.

    No program that lists or shares cards may be at work there, or about to be: then the count is one of slots.
    """
    metadata = node.get("metadata") or {}
    listed = {register.annotation for register in dialects.registers} & (metadata.get("annotations") or {}).keys()
    if not dialects.elsewhere or listed or AGENT_LABEL in (metadata.get("labels") or {}):
        return None
    cards = counted_cards(node, dialects.elsewhere)
    return replace(host_capacity(node) or NO_HOST, cards=cards) if cards else None


def _registers(
    annotations: Mapping[str, Any], status: Mapping[str, Any], dialects: Dialects
) -> Iterator[tuple[NodeRegister, str]]:
    for register in dialects.registers:
        if register.capacity is None:
            if register.annotation in annotations:
                yield register, annotations[register.annotation]
        elif register.capacity.unless not in annotations:
            text = capacity_text(status, register.capacity)
            if text is not None:
                yield register, text


def _listed_twice(
    annotations: Mapping[str, Any], status: Mapping[str, Any], dialects: Dialects
) -> Iterator[NodeRegister]:
    for register in dialects.registers:
        capacity = register.capacity
        if capacity and capacity.unless in annotations and capacity_text(status, capacity) is not None:
            yield register


def _offered(
    listed: Iterable[str], allocatable: Mapping[str, Any], registers: Iterable[tuple[NodeRegister, str]]
) -> frozenset[str]:
    """Return the counts of which there are some, and those that another resource of the same plugin answers for."""
    stands_for = {register.count: register.served for register, _ in registers if register.served != register.count}
    direct = {name for name in listed if name not in stands_for and _some(allocatable[name])}
    return frozenset(direct | {count for count, served in stands_for.items() if _some(allocatable.get(served))})


def read_registers(facts: NodeFacts) -> Inventory:
    """Return a node's cards; one that can't be read does not hide the others.

    Raises BadInput when a register can't be read at all.
    """
    cards: dict[str, Card] = {}
    problems = list(_contradictions(facts))
    for register, text in facts.registers:
        where = f"node {facts.name}, {register.place}"
        try:
            registered, unreadable = read_cards(text, register, facts.name)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
        problems += [f"{where}, {problem}" for problem in unreadable]
        for each in registered:
            card = _card(each, facts.name)
            if card.object_name in cards:
                problems.append(f"{where}, card {card.uuid}: listed twice; the first one counts")
            else:
                cards[card.object_name] = card
    try:
        links = read_scores(facts.scores) if facts.scores is not None else {}
    except BadInput as error:
        links = {}
        problems.append(f"node {facts.name}, annotation {SCORES_ANNOTATION}: {error}; the scores are left out")
    return Inventory(tuple(_linked(card, links) for card in cards.values()), tuple(problems))


def _linked(card: Card, links: Mapping[str, Mapping[str, int]]) -> Card:
    return replace(card, links=Links(links[card.uuid])) if card.uuid in links else card


def _one_for_each_vendor(
    registers: tuple[tuple[NodeRegister, str], ...], offered: frozenset[str]
) -> tuple[tuple[NodeRegister, str], ...]:
    """Return one register per vendor: of a plugin that answers, before what another one has left behind."""
    chosen: dict[str, tuple[NodeRegister, str]] = {}
    for found in sorted(registers, key=lambda found: found[0].count not in offered):
        register, _ = found
        chosen.setdefault(register.vendor if register.vendor == NVIDIA else register.place, found)
    return tuple(chosen.values())


def _offer(
    registers: tuple[tuple[NodeRegister, str], ...],
    offered: frozenset[str],
    once: frozenset[str],
    dialects: Dialects,
    serves_claims: bool,
) -> NodeOffer | None:
    served = offered & {each.count for each, _ in registers}
    if any(each.dialect is Dialect.NATIVE for each, _ in registers):
        # Our agent serves all names of its vendor. Without its own one, another is what another plugin has left behind.
        ours = dialects.counts() if served else dialects.counts(but=NVIDIA)
        by_claim = {DRIVER} if served and serves_claims else frozenset()
        return NodeOffer(Dialect.NATIVE, (offered & {*ours}) | by_claim) if offered & {*ours} else None
    if not served:
        return None
    # A pod's annotations name its cards in one dialect: what a plugin of another one has beside it can't be given out.
    dialect = registers[0][0].dialect
    return NodeOffer(dialect, served & {each.count for each, _ in registers if each.dialect is dialect}, once)


def _contradictions(facts: NodeFacts) -> Iterable[str]:
    """Yield what an administrator should know of a node whose cards no pod will get."""
    for register, _ in facts.registers:
        # KNOWN_COUNTS are names of NVIDIA's cards: no other vendor's plugin serves these.
        others = sorted(facts.offered & {*KNOWN_COUNTS} - {register.count}) if register.vendor == NVIDIA else []
        if register.dialect is not Dialect.NATIVE and register.count not in facts.offered and others:
            yield (
                f"node {facts.name} lists its cards in {register.annotation}, and offers {', '.join(others)}, but none "
                f"of {register.count}, which is the name in the settings: name there what its device plugin serves"
            )
    for register in facts.left_out:
        instead = register.capacity.unless if register.capacity else ""
        yield (
            f"node {facts.name}, {register.place}: not read, because the annotation {instead} lists the cards already; "
            f"pods that ask for {register.count} get none here"
        )
    # Beside other names it is our agent's, which has not listed its cards yet.
    if not facts.registers and facts.offered & {*KNOWN_COUNTS} == {CLASSIC_COUNT}:
        yield (
            f"node {facts.name} offers {CLASSIC_COUNT} and lists no UUIDs of its cards: it has no inventory, "
            "and gets no pods of ours; its device plugin has to be replaced"
        )


def _some(quantity: object) -> bool:
    try:
        return quantity is not None and whole_number(quantity) > 0
    except BadInput:
        return False


def register_of(cards: Iterable[Card]) -> str:
    """Return the annotation that lists these cards. The same cards always give the same text."""
    return orjson.dumps([_registered(card) for card in cards]).decode()


def repaired_at(node: JsonMapping) -> datetime | None:
    """Return when a person has repaired a node's cards last; None if nobody has, or the time can't be read."""
    return time_of(str((node["metadata"].get("annotations") or {}).get(REPAIRED_ANNOTATION, "")))


def _card(registered: RegisteredCard, node_name: str) -> Card:
    return Card(
        uuid=registered.uuid,
        node_name=node_name,
        index=registered.index,
        capacity=Amounts(registered.memory_mib, registered.cores, registered.number),
        vendor=registered.vendor,
        model=registered.model,
        mode=registered.mode,
        numa_node=registered.numa_node,
        pcie_root=registered.pcie_root or "",
        healthy=registered.healthy,
        fault=registered.fault,
        failure=_failure(registered),
        links=Links(registered.links),
    )


def _failure(registered: RegisteredCard) -> Failure | None:
    given = registered.failure
    return None if given is None else Failure(FaultClass(given.fault_class), given.since)


def _registered(card: Card) -> dict[str, Any]:
    given = {**described(card), **amounts_json(card.capacity), "fault": card.fault[:MAX_LINE]}
    registered = RegisteredCard.model_validate({**given, "links": dict(card.links)})
    return registered.model_dump(by_alias=True, exclude_none=True, exclude=None if card.fault else {"fault"})


PORT_NAME = "health"
"""As manifests/agent/daemonset.yaml has it."""


@dataclass(frozen=True, slots=True)
class AgentPod:
    """One agent's pod."""

    name: str
    node_name: str
    """Empty while it is bound to none."""
    address: str
    """Its IP address, as its kubelet says; empty as long as that says none."""
    port: int
    """Of HTTP; 0 if its containers declare none."""
    ready: bool


def agent_pod(pod: JsonMapping, port_name: str = PORT_NAME) -> AgentPod:
    """Return the address of an agent, from its pod as the API server has it; or of another program, by its port."""
    status, containers = pod.get("status") or {}, (pod.get("spec") or {}).get("containers") or ()
    declared = (port for container in containers for port in container.get("ports") or ())
    port = next((int(each["containerPort"]) for each in declared if each.get("name") == port_name), 0)
    return AgentPod(pod["metadata"]["name"], bound_node(pod), str(status.get("podIP") or ""), port, is_ready(pod))


def best_by_node(pods: Iterable[AgentPod]) -> dict[str, AgentPod]:
    """Return node name -> its agent's pod: while one follows another, the one that is Ready."""
    found: dict[str, AgentPod] = {}
    for pod in pods:
        before = found.get(pod.node_name)
        if pod.node_name and (before is None or (pod.ready and not before.ready)):
            found[pod.node_name] = pod
    return found


def host_of(address: str) -> str:
    """Return a pod's address as a URL has it; empty for one that no pod has.

    A kubelet reports the address of its pods, and it must not lead a client to its own machine.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return ""
    if ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return ""
    mapped = getattr(ip, "ipv4_mapped", None)
    if mapped is not None:
        return host_of(str(mapped))
    if getattr(ip, "scope_id", None):
        return ""
    return f"[{ip}]" if ip.version == 6 else str(ip)
