"""A CEL expression after its check, as a tree. It is read from the bytes in which the CEL library hands it out.

Source of the format: `cel.expr.CheckedExpr` in checked.proto and syntax.proto of the CEL specification, in protobuf's
wire format. Only what the evaluation needs is read, so no types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


def walk(root: Node) -> list[Node]:
    """Return all nodes of a tree."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting.extend(children(node))
    return found


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes right below one."""
    if isinstance(node, Select):
        return (node.operand,)
    if isinstance(node, Call):
        return node.args
    if isinstance(node, ListLiteral):
        return node.elements
    if isinstance(node, MapLiteral):
        return tuple(part for key, value, _ in node.entries for part in (key, value))
    if isinstance(node, Comprehension):
        return (node.over, node.start, node.condition, node.step, node.result)
    return ()


def read_checked(packed: bytes) -> Checked:
    """Read what the library's `serialize()` returns: an Any with a CheckedExpr. Raises Unreadable."""
    if len(packed) > MOST_BYTES:
        raise Unreadable("it has too many parts")
    try:
        checked = _Message(packed).message(2)
        offsets = {entry.number(1): entry.number(2) for entry in checked.message(5).messages(4)}
        names = {entry.number(1): entry.message(2).text(1) for entry in checked.messages(2)}
        reader = _Reader({number: name for number, name in names.items() if name})
        return Checked(reader.node(checked.message(4), 0), offsets)
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise Unreadable(f"the library's form of the expression can't be read: {type(error).__name__}") from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


class _Message:
    """A message of protobuf. A field that is missing is zero, or empty."""

    __slots__ = ("fields",)

    def __init__(self, data: bytes) -> None:
        self.fields: dict[int, list[Any]] = {}
        """Field number -> its values, in order: numbers or bytes."""
        at, end = 0, len(data)
        while at < end:
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind not in _SIZES:
                raise Unreadable(f"wire type {kind}")
            size, at = (_SIZES[kind], at) if _SIZES[kind] else _varint(data, at)
            value: int | bytes = size
            if kind:
                value, at = data[at : at + size], at + size
            self.fields.setdefault(tag >> 3, []).append(value)

    def number(self, field: int) -> int:
        """Return the last value of a field of numbers."""
        return int(self.fields.get(field, (0,))[-1])

    def bytes(self, field: int) -> bytes:
        """Return the last value of a field of bytes, or of whatever is written as bytes."""
        found = self.fields.get(field, (b"",))[-1]
        if not isinstance(found, bytes):
            raise Unreadable(f"field {field} is a number")
        return found

    def text(self, field: int) -> str:
        """Return the last value of a field of texts."""
        return self.bytes(field).decode()

    def message(self, field: int) -> _Message:
        """Return the last value of a field of messages."""
        return _Message(self.bytes(field))

    def messages(self, field: int) -> list[_Message]:
        """Return the values of a field of messages."""
        return list(map(_Message, self.fields.get(field, ())))


_SIZES = {0: 0, 1: 8, 2: 0, 5: 4}
"""Wire type -> its bytes; 0: a number, or one and as many bytes."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the nodes of one expression."""

    names: Mapping[int, str]
    """A node's id -> the full name that it stands for, such as `device.attributes`."""

    def node(self, message: _Message, depth: int) -> Node:
        if depth > MOST_DEPTH:
            raise Unreadable("it is nested too deeply")
        kind = next((kind for kind in _READ if kind in message.fields), 0)
        if not kind:
            raise Unreadable("a node without content")
        return _READ[kind](self, message.number(2), message.message(kind), depth + 1)

    def nodes(self, body: _Message, field: int, depth: int) -> tuple[Node, ...]:
        return tuple(self.node(each, depth) for each in body.messages(field))

    def const(self, number: int, body: _Message, _depth: int) -> Node:
        return Const(number, _constant(body))

    def ident(self, number: int, body: _Message, _depth: int) -> Node:
        return Ident(number, self.names.get(number) or body.text(1))

    def select(self, number: int, body: _Message, depth: int) -> Node:
        if number in self.names:  # a name with dots in it
            return Ident(number, self.names[number])
        return Select(number, self.node(body.message(1), depth), body.text(2), bool(body.number(3)))

    def call(self, number: int, body: _Message, depth: int) -> Node:
        return Call(number, body.text(2), self.nodes(body, 1, depth) + self.nodes(body, 3, depth))

    def list(self, number: int, body: _Message, depth: int) -> Node:
        return ListLiteral(number, self.nodes(body, 1, depth), frozenset(_packed(body.bytes(2))))

    def map(self, number: int, body: _Message, depth: int) -> Node:
        if body.text(1):
            raise Unreadable(f"a message {body.text(1)}")
        entries = (
            (self.node(each.message(3), depth), self.node(each.message(4), depth), bool(each.number(5)))
            for each in body.messages(2)
        )
        return MapLiteral(number, tuple(entries))

    def comprehension(self, number: int, body: _Message, depth: int) -> Node:
        if body.bytes(8):
            raise Unreadable("a macro with two variables")
        over, start, condition, step, result = (self.node(body.message(part), depth) for part in (2, 4, 5, 6, 7))
        return Comprehension(number, body.text(1), over, body.text(3), start, condition, step, result)


_READ: dict[int, Callable[[_Reader, int, _Message, int], Node]] = {
    3: _Reader.const,
    4: _Reader.ident,
    5: _Reader.select,
    6: _Reader.call,
    7: _Reader.list,
    8: _Reader.map,
    9: _Reader.comprehension,
}
"""By the number of the field in which a node has its content."""


def _packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


_CONSTANTS: dict[int, Callable[[_Message, int], object]] = {
    2: lambda body, field: bool(body.number(field)),
    3: lambda body, field: (body.number(field) ^ 1 << 63) - (1 << 63),
    4: lambda body, field: Uint(body.number(field)),
    5: lambda body, field: float(struct.unpack("<d", body.bytes(field))[0]),
    6: _Message.text,
    7: _Message.bytes,
    1: lambda body, field: None,
}
"""Number of the field in which a literal has its value -> how that is read."""


def _constant(body: _Message) -> object:
    for field, read in _CONSTANTS.items():
        if field in body.fields:
            return read(body, field)
    raise Unreadable("a literal of a kind that is not known")
