"""The values that a setting can have, checked by pydantic: those of its default's kind, within its declaration.

pydantic takes 0.1 s to import: programs that only need the defaults, such as `kubectl gpuledger`, do not import this.
"""

from __future__ import annotations

from dataclasses import Field as Option
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

_KINDS = {str: "str", int: "int", float: "float", bool: "bool", tuple: "list of str"}


def adapter_of(option: Option[Any]) -> TypeAdapter[Any]:
    """Return what checks a value of an option, and knows its JSON schema."""
    metadata, kind = option.metadata, type(option.default)
    wanted: Any = kind
    if kind in (str, tuple):
        word: Any = Literal[metadata["choices"]] if metadata["choices"] else str
        wanted = word if kind is str else tuple[word, ...]
    elif kind in (int, float):
        wanted = Annotated[wanted, Field(ge=metadata["least"], le=metadata["most"])]
    return TypeAdapter(wanted, config=ConfigDict(strict=True))


def checked(option: Option[Any], value: object) -> Any:
    """Return a value as the settings have it: a list as a tuple, a whole number of seconds as a float.

    Raises ValueError, which says what it must be.
    """
    try:
        return adapter_of(option).validate_python(tuple(value) if isinstance(value, list) else value)
    except ValidationError as error:
        rule = _rule(option, error.errors()[0])
        raise ValueError(f"settings: {option.name} {rule}, not {value!r}") from error


def _rule(option: Option[Any], broken: ErrorDetails) -> str:
    metadata, kind = option.metadata, type(option.default)
    if broken["type"] == "literal_error" and isinstance(broken["input"], str):
        words = ", ".join(metadata["choices"])
        return f"is a list of {words}" if kind is tuple else f"must be one of {words}"
    if broken["type"] == "greater_than_equal":
        return f"is {metadata['least']} at least"
    if broken["type"] == "less_than_equal":
        return f"is {metadata['most']} at most"
    return f"must be a {_KINDS[kind]}"
