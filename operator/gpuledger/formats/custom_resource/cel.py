"""Writes values and texts in CEL, the language of the API server's policies."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from textwrap import fill, indent

LINE = 100
"""How long a line of a list may be."""

ALL_CONTAINERS = "(object.spec.containers + object.spec.?initContainers.orValue([]))"


def literal(value: str | Collection[str]) -> str:
    """Return a string, or a list of strings, as CEL has it: the same as JSON."""
    if isinstance(value, str):
        return json.dumps(value)
    items = ", ".join(json.dumps(each) for each in value)
    if len(items) < LINE:
        return f"[{items}]"
    return "[\n" + indent(fill(items, LINE, break_long_words=False, break_on_hyphens=False), "    ") + "\n  ]"


def table(rows: Mapping[str, str | Collection[str] | Mapping[str, str]]) -> str:
    """Return a map with a line for each key. All values must be of one kind, or CEL refuses it."""
    lines = ",\n".join(f"  {literal(key)}: {json.dumps(value)}" for key, value in rows.items())
    return f"{{\n{lines}\n}}" if rows else "{}"


def mentions(names: str) -> str:
    """Return the expression that tells of a container `c` whether it says anything of these resources."""
    return f"c.?resources.?limits.orValue({{}}).exists(n, n in {names})"


def asks(names: str, counts: str) -> str:
    """Return the expression that tells of a container `c` whether it asks for cards: a count of 0 asks for none."""
    zero = is_zero("c.resources.limits[n]")
    return f"{mentions(names)} &&\n  !c.resources.limits.exists(n, n in {counts} && {zero})"


def is_zero(quantity: str) -> str:
    """Return the expression that tells whether a quantity is nothing."""
    return f"quantity({quantity}).compareTo(quantity('0')) == 0"
