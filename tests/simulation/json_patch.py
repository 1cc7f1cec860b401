"""JSON patch (RFC 6902), the operations that are used here, without ever changing the document that it is given."""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


class PatchFailed(Exception):  # noqa: N818 - reads as what it is
    """An operation can't be carried out, or a test does not hold."""


def apply_patch(document: Json, operations: Sequence[Json]) -> Json:
    """Return the document after all operations. Raises PatchFailed."""
    for operation in operations:
        steps = operation["path"].split("/")[1:]
        document = _apply(document, steps, operation)
    return document


def _apply(place: Any, steps: list[str], operation: Json) -> Any:
    """Return a copy of the place in which the operation is carried out; what it does not touch is shared."""
    first, rest = _key(place, steps[0]), steps[1:]
    if rest:
        inner = _at(place, first)
        if operation["op"] == "test":
            _apply(inner, rest, operation)
            return place
        copy = place.copy()
        copy[first] = _apply(inner, rest, operation)
        return copy
    match operation["op"]:
        case "test":
            if _at(place, first) != operation["value"]:
                raise PatchFailed(f"test of {operation['path']} failed")
            return place
        case "add":
            return _added(place, first, operation["value"])
        case "replace":
            _at(place, first)
            copy = place.copy()
            copy[first] = operation["value"]
            return copy
        case "remove":
            _at(place, first)
            copy = place.copy()
            del copy[first]
            return copy
    raise AssertionError(f"operation {operation['op']} is not known here")


def _key(place: Any, step: str) -> str | int:
    if isinstance(place, dict):
        return step.replace("~1", "/").replace("~0", "~")
    if isinstance(place, list):
        if step == "-":
            return len(place)
        if step.isdigit():
            return int(step)
    raise PatchFailed(f"there is no {step}")


def _at(place: Any, key: str | int) -> Any:
    try:
        return place[key]
    except (KeyError, IndexError):
        raise PatchFailed(f"there is no {key}") from None


def _added(place: Any, key: Any, value: Any) -> Any:
    copy = place.copy()
    if isinstance(place, dict):
        copy[key] = value
    elif key > len(place):
        raise PatchFailed(f"there is no {key}")
    else:
        copy.insert(key, value)
    return copy
