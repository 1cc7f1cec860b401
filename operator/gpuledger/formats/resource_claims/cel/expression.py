"""A CEL expression after its check, as a tree. It is read from the bytes in which the CEL library hands it out.

Source of the format: `cel.expr.CheckedExpr` in checked.proto and syntax.proto of the CEL specification, in protobuf's
wire format. Only what the evaluation needs is read, so no types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpuledger.formats.resource_claims.cel.values import Uint

MOST_DEPTH = 100
"""Levels of a tree. With the library's own limit, the deepest that was found has 62, macros included."""


MOST_BYTES = 96 * 1024
"""Of what is read: some two thousand nodes. What people write takes a hundredth of it."""


class Unreadable(ValueError):  # noqa: N818
    """Bytes that are no checked expression, or one that has parts of which nothing is known here."""


@dataclass(frozen=True, slots=True)
class Const:
    """A literal."""

    id: int
    value: object


@dataclass(frozen=True, slots=True)
class Ident:
    """A variable or a type, by its full name."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """A field of a map. With `test_only`, whether it is there: `has(operand.field)`."""

    id: int
    operand: Node
    field: str
    test_only: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator. The target of `target.function(...)` is the first argument."""

    id: int
    function: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """A list; `optional` has the positions of elements that are left out if they have no value."""

    id: int
    elements: tuple[Node, ...]
    optional: frozenset[int]


@dataclass(frozen=True, slots=True)
class MapLiteral:
    """A map: key, value, and whether the entry is left out if its value has none."""

    id: int
    entries: tuple[tuple[Node, Node, bool], ...]


@dataclass(frozen=True, slots=True)
class Comprehension:
    """What `all`, `exists`, `map`, `cel.bind` and the like have become: a fold over a list, or over a map's keys."""

    id: int
    variable: str
    over: Node
    result_name: str
    start: Node
    condition: Node
    step: Node
    result: Node


Node = Const | Ident | Select | Call | ListLiteral | MapLiteral | Comprehension


@dataclass(frozen=True, slots=True)
class Checked:
    """A checked expression."""

    root: Node
    offsets: Mapping[int, int]
    """A node's id -> its place in the text, in characters."""


def read_checked(packed: bytes) -> Checked:
    """Read what the library's `serialize()` returns: an Any with a CheckedExpr. Raises Unreadable."""
    if len(packed) > MOST_BYTES:
        raise Unreadable("it has too many parts")
    try:
        message = _only(packed, 2)
        return _checked(_fields(message))
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise Unreadable(f"the library's form of the expression can't be read: {type(error).__name__}") from error


Fields = dict[int, list[int | bytes]]
"""Field number -> its values, in order."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Fields:
    found: Fields = {}
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            found.setdefault(tag >> 3, []).append(value)
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Unreadable(f"wire type {kind}")
        found.setdefault(tag >> 3, []).append(data[at : at + size])
        at += size
    return found


def _bytes(fields: Fields, number: int) -> bytes:
    value = fields[number][-1] if number in fields else b""
    if not isinstance(value, bytes):
        raise Unreadable(f"field {number} is a number")
    return value


def _only(data: bytes, number: int) -> bytes:
    return _bytes(_fields(data), number)


def _text(fields: Fields, number: int) -> str:
    return _bytes(fields, number).decode()


def _number(fields: Fields, number: int) -> int:
    value = fields[number][-1] if number in fields else 0
    if not isinstance(value, int):
        raise Unreadable(f"field {number} is no number")
    return value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _checked(fields: Fields) -> Checked:
    source = _fields(_bytes(fields, 5))
    offsets = {}
    for entry in source.get(4, []):
        pair = _fields(entry) if isinstance(entry, bytes) else {}
        offsets[_number(pair, 1)] = _number(pair, 2)
    names = _reference_names(fields)
    return Checked(_Reader(names).node(_bytes(fields, 4), 0), offsets)


def _reference_names(fields: Fields) -> dict[int, str]:
    """Return id -> the full name that an identifier stands for, such as `device.attributes`."""
    names = {}
    for entry in fields.get(2, []):
        pair = _fields(entry) if isinstance(entry, bytes) else {}
        name = _text(_fields(_bytes(pair, 2)), 1)
        if name:
            names[_number(pair, 1)] = name
    return names


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the nodes of one expression."""

    names: Mapping[int, str]

    def node(self, data: bytes, depth: int) -> Node:
        if depth > MOST_DEPTH:
            raise Unreadable("it is nested too deeply")
        fields = _fields(data)
        kind = next((kind for kind in _READ if kind in fields), 0)
        if not kind:
            raise Unreadable("a node without content")
        return _READ[kind](self, _number(fields, 2), _fields(_bytes(fields, kind)), depth + 1)

    def child(self, body: Fields, number: int, depth: int) -> Node:
        return self.node(_bytes(body, number), depth)

    def children(self, body: Fields, number: int, depth: int) -> tuple[Node, ...]:
        return tuple(self.node(each, depth) for each in body.get(number, []) if isinstance(each, bytes))

    def const(self, number: int, body: Fields, _depth: int) -> Node:
        return Const(number, _constant(body))

    def ident(self, number: int, body: Fields, _depth: int) -> Node:
        return Ident(number, self.names.get(number) or _text(body, 1))

    def select(self, number: int, body: Fields, depth: int) -> Node:
        if number in self.names:  # a name with dots in it, such as device.attributes
            return Ident(number, self.names[number])
        return Select(number, self.child(body, 1, depth), _text(body, 2), bool(_number(body, 3)))

    def call(self, number: int, body: Fields, depth: int) -> Node:
        target = (self.child(body, 1, depth),) if 1 in body else ()
        return Call(number, _text(body, 2), target + self.children(body, 3, depth))

    def list(self, number: int, body: Fields, depth: int) -> Node:
        return ListLiteral(number, self.children(body, 1, depth), frozenset(_packed(body, 2)))

    def map(self, number: int, body: Fields, depth: int) -> Node:
        if _text(body, 1):
            raise Unreadable(f"a message {_text(body, 1)}")
        entries = []
        for each in body.get(2, []):
            entry = _fields(each) if isinstance(each, bytes) else {}
            key, value = self.child(entry, 3, depth), self.child(entry, 4, depth)
            entries.append((key, value, bool(_number(entry, 5))))
        return MapLiteral(number, tuple(entries))

    def comprehension(self, number: int, body: Fields, depth: int) -> Node:
        if _bytes(body, 8):
            raise Unreadable("a macro with two variables")
        over, start, condition, step, result = (self.child(body, part, depth) for part in (2, 4, 5, 6, 7))
        return Comprehension(number, _text(body, 1), over, _text(body, 3), start, condition, step, result)


_READ: dict[int, Callable[[_Reader, int, Fields, int], Node]] = {
    3: _Reader.const,
    4: _Reader.ident,
    5: _Reader.select,
    6: _Reader.call,
    7: _Reader.list,
    8: _Reader.map,
    9: _Reader.comprehension,
}
"""By the number of the field in which a node has its content."""


def _packed(body: Fields, number: int) -> Iterator[int]:
    for each in body.get(number, []):
        if isinstance(each, int):
            yield each
            continue
        at = 0
        while at < len(each):
            value, at = _varint(each, at)
            yield value


def _constant(body: Fields) -> object:
    if 2 in body:
        return bool(_number(body, 2))
    if 3 in body:
        return _signed(_number(body, 3))
    if 4 in body:
        return Uint(_number(body, 4))
    if 5 in body:
        return float(struct.unpack("<d", _bytes(body, 5))[0])
    if 6 in body:
        return _text(body, 6)
    if 7 in body:
        return _bytes(body, 7)
    if 1 in body:
        return None
    raise Unreadable("a literal of a kind that is not known")
