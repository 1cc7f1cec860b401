"""Parameters of our driver in a claim's opaque configuration: what the fields of a request can't say.

They are an object of apiVersion gpuledger.dev/v1alpha1 and kind Share, such as {..., memoryMiB: 10240, cores: 30}.
Before Kubernetes 1.36, the API server drops `capacity` from requests, so amounts have to stand here. Where both say an
amount, the request's own field counts, because the API server has checked it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import orjson

from gpuledger.formats.custom_resource.resource import API_VERSION, MAX_MEMORY_MIB
from gpuledger.formats.dialects.selection import MAX_ENTRIES
from gpuledger.model.card import ALL_CORES
from gpuledger.model.errors import BadInput

KIND: Final = "Share"


@dataclass(frozen=True, slots=True)
class ShareParameters:
    """What a claim wishes of each of its cards; None and empty: nothing."""

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
    """Return what several parameters say together, a later one before an earlier one.

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
