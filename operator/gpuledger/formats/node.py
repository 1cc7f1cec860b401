"""Nodes: the annotation in which a node's agent lists its cards, and whether the agent answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gpuledger.formats.gpu_allocation import (
    MAX_INDEX,
    MAX_LINKS,
    UUID_PATTERN,
    CardSpec,
    Cores,
    Line,
    LinkScore,
    SomeMemoryMiB,
    SomeSlots,
    Word,
    wire_name,
)
from gpuledger.formats.quantity import whole_number
from gpuledger.model.amounts import Amounts
from gpuledger.model.card import ALL_CORES, Card
from gpuledger.model.errors import BadInput

REGISTER_ANNOTATION = "gpuledger.dev/gpus"
"""On a node: JSON list of {uuid, index, vendor, model, memoryMiB, cores, number, numaNode, mode, healthy, links}."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All that the ledger takes from a Node. Two updates with equal facts are the same to it."""

    name: str
    register: str | None
    """The annotation as it is, or None."""
    slots: int
    """Allocatable amount of the count resource; the kubelet sets it to 0 when the device plugin is gone."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The cards of a register that could be read, and a sentence on each that could not."""

    cards: tuple[Card, ...]
    problems: tuple[str, ...] = ()


class RegisteredCard(BaseModel):
    """One element of the register. Fields and limits are those of the CRD; only the amounts are spelled flat."""

    model_config = ConfigDict(alias_generator=wire_name, populate_by_name=True, frozen=True, strict=True)

    uuid: Annotated[str, Field(pattern=UUID_PATTERN, max_length=253)]
    index: Annotated[int, Field(ge=0, le=MAX_INDEX)]
    vendor: Word = "nvidia"
    model: Line = ""
    memory_mib: SomeMemoryMiB
    cores: Cores = ALL_CORES
    number: SomeSlots = 10
    numa_node: Annotated[int, Field(ge=-1, le=MAX_INDEX)] | None = None
    mode: Word = ""
    healthy: bool = True
    links: Annotated[dict[str, LinkScore], Field(max_length=MAX_LINKS)] = {}


_CARD = TypeAdapter(RegisteredCard)


def node_facts(node: Mapping[str, Any], count_resource: str) -> NodeFacts:
    """Return what matters of a Node. Only the configured count resource tells whether the agent is there.

    Left-over amounts of other resource names are ignored, and so is an amount that is not a number.
    """
    metadata, status = node.get("metadata") or {}, node.get("status") or {}
    try:
        slots = whole_number((status.get("allocatable") or {}).get(count_resource, 0))
    except BadInput:
        slots = 0
    return NodeFacts(metadata.get("name", ""), (metadata.get("annotations") or {}).get(REGISTER_ANNOTATION), slots)


def read_register(facts: NodeFacts) -> Inventory:
    """Return the cards of a node's annotation; one that can't be read does not hide the others.

    Raises BadInput when the annotation is no JSON list at all.
    """
    if facts.register is None:
        return Inventory(())
    try:
        items = orjson.loads(facts.register)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"node {facts.name}, annotation {REGISTER_ANNOTATION} is not JSON: {error}") from error
    if not isinstance(items, list):
        raise BadInput(f"node {facts.name}, annotation {REGISTER_ANNOTATION} is not a list of cards")
    cards: dict[str, Card] = {}
    problems = []
    for position, item in enumerate(items):
        try:
            card = _card(_CARD.validate_python(item), facts.name)
        except ValidationError as error:
            problems.append(f"{_where(facts, position, item)}: {_reason(error)}; the card is left out")
            continue
        if card.object_name in cards:
            problems.append(f"{_where(facts, position, item)}: listed twice; the first one counts")
            continue
        cards[card.object_name] = card
    return Inventory(tuple(cards.values()), tuple(problems))


def register_of(cards: Iterable[Card]) -> str:
    """Return the annotation that lists these cards. The same cards always give the same text."""
    return orjson.dumps([_registered(card) for card in cards]).decode()


def card_spec(card: Card) -> dict[str, Any]:
    """Return a card as the `spec` of its GPUAllocation."""
    return CardSpec.model_validate(
        {
            "uuid": card.uuid,
            "nodeName": card.node_name,
            "index": card.index,
            "vendor": card.vendor,
            "model": card.model,
            "mode": card.mode,
            "numaNode": card.numa_node,
            "healthy": card.healthy,
            "capacity": {
                "memoryMiB": card.capacity.memory_mib,
                "cores": card.capacity.cores,
                "number": card.capacity.number,
            },
            "links": dict(card.links) or None,
        }
    ).model_dump(by_alias=True, exclude_none=True)


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
        healthy=registered.healthy,
        links=dict(registered.links),
    )


def _registered(card: Card) -> dict[str, Any]:
    return RegisteredCard(
        uuid=card.uuid,
        index=card.index,
        vendor=card.vendor,
        model=card.model,
        memory_mib=card.capacity.memory_mib,
        cores=card.capacity.cores,
        number=card.capacity.number,
        numa_node=card.numa_node,
        mode=card.mode,
        healthy=card.healthy,
        links=dict(card.links),
    ).model_dump(by_alias=True, exclude_none=True)


def _where(facts: NodeFacts, position: int, item: object) -> str:
    uuid = item.get("uuid") if isinstance(item, dict) else None
    name = f"card {uuid}" if isinstance(uuid, str) else f"card number {position}"
    return f"node {facts.name}, annotation {REGISTER_ANNOTATION}, {name[:128]}"


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field or 'entry'}: {first['msg']}"
