"""The answer of a node's agent to `GET /usage`: JSON, docs/node-agent.md has an example.

An agent is as trustworthy as its node. Its answer is read strictly, and a reader asks for no more bytes than
LONGEST_ANSWER_BYTES. The reader checks whether the ledger knows the cards and pods that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.node import CardUsage, ContainerUsage, NodeUsage

Part = TypeVar("Part")

LONGEST_ANSWER_BYTES = 1024 * 1024
"""A container on a card takes some 300; sixteen cards with a hundred containers each have room."""

SOURCES = ("region", "nvml")

NAME_LENGTH = 253
"""Of names and UIDs, as Kubernetes allows it."""
TIME_LENGTH = 40

MOST_MIB = 2**40
MOST_PERCENT = 100
"""A container's processes are measured one by one; more together is the whole card."""
MOST_S = 2**40


def read_node_usage(answer: object, node_name: str) -> NodeUsage:
    """Return the usage of a node from its agent's answer. Raises BadInput: it can't be read, or is another node's."""
    found = _object(answer, "the answer")
    name = _text(found, "node", "the answer")
    if name != node_name:
        raise BadInput(f"the agent answers for node {name!r}, not for {node_name!r}")
    cards = _parts(found, "cards", _card)
    return NodeUsage(name, _time(found), cards, _parts(found, "containers", _container))


def _card(found: JsonMapping, where: str) -> CardUsage:
    return CardUsage(
        _text(found, "uuid", where),
        _number(found, "memoryUsedMiB", where, MOST_MIB),
        _percent(found, where),
    )


def _container(found: JsonMapping, where: str) -> ContainerUsage:
    paused, source = found.get("paused"), found.get("source")
    if not isinstance(paused, bool):
        raise BadInput(f"{where}: paused is neither true nor false")
    if source not in SOURCES:
        raise BadInput(f"{where}: source is none of {', '.join(SOURCES)}")
    return ContainerUsage(
        _text(found, "podUID", where),
        _text(found, "container", where),
        _text(found, "uuid", where),
        _number(found, "memoryUsedMiB", where, MOST_MIB),
        _number(found, "memoryLimitMiB", where, MOST_MIB),
        _percent(found, where),
        _number(found, "lastKernelSecondsAgo", where, MOST_S),
        paused,
        str(source),
    )


def _parts(found: JsonMapping, key: str, read: Callable[[JsonMapping, str], Part]) -> tuple[Part, ...]:
    parts = found.get(key)
    if not isinstance(parts, list):
        raise BadInput(f"the answer: {key} is no list")
    places = ((f"{key}[{position}]", part) for position, part in enumerate(parts))
    return tuple(read(_object(part, where), where) for where, part in places)


def _object(found: object, where: str) -> JsonMapping:
    if not isinstance(found, dict):
        raise BadInput(f"{where} is no object")
    return found


def _text(found: JsonMapping, key: str, where: str) -> str:
    text = found.get(key)
    if not isinstance(text, str) or not 0 < len(text) <= NAME_LENGTH:
        raise BadInput(f"{where}: {key} is no text of 1 to {NAME_LENGTH} characters")
    return text


def _time(found: JsonMapping) -> str:
    text = _text(found, "at", "the answer")
    try:
        if len(text) > TIME_LENGTH or datetime.fromisoformat(text).tzinfo is None:
            raise ValueError
    except ValueError:
        raise BadInput("the answer: at is no time with a zone, such as 2026-01-31T12:00:00Z") from None
    return text


def _percent(found: JsonMapping, where: str) -> int | None:
    percent = _number(found, "utilizationPercent", where, MOST_MIB)
    return None if percent is None else min(percent, MOST_PERCENT)


def _number(found: JsonMapping, key: str, where: str, most: int) -> int | None:
    """Return a number in whole units, None for null and where it is left out."""
    number = found.get(key)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= most:
        raise BadInput(f"{where}: {key} is no number from 0 to {most}")
    return round(number)
