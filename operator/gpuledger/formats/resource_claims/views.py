"""What a selector can see of a card: cards that look the same to it have the same answer. Pure.

A cluster has tens of thousands of cards and few models, and most expressions speak of a model or of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuledger.formats.resource_claims.cel import environment
from gpuledger.formats.resource_claims.cel.evaluation import children
from gpuledger.formats.resource_claims.cel.expression import Call, Const, Ident, Node, Select
from gpuledger.model.card import ATTRIBUTES, Card

View = Callable[[Card], object]

_INDEXED = frozenset({"_[_]", "_[?_]", "_?._"})


def view_of(root: Node) -> View:
    """Return a function from a card to what the expression can see of it, which can be the key of a map."""
    found = set(_seen(root))
    names = ATTRIBUTES if None in found else [name for name in ATTRIBUTES if name in found]
    reads = [ATTRIBUTES[name] for name in names]
    if len(reads) == 1:
        (only,) = reads
        return lambda card: (only(card), card.capacity)
    return lambda card: (*[read(card) for read in reads], card.capacity)


def _seen(node: Node) -> Iterator[str | None]:
    """Yield the qualified names of the attributes that an expression names; None if it may look at any other one."""
    domain, name = _key(node)
    inner, key = _key(domain) if domain is not None else (None, None)
    if inner is not None and _is_attributes(inner):
        yield None if key is None or name is None else f"{key}/{name}"
        return
    if _is_attributes(node):
        yield None
        return
    for each in children(node):
        yield from _seen(each)


def _is_attributes(node: Node) -> bool:
    return isinstance(node, Ident) and node.name == environment.ATTRIBUTES


def _key(node: Node) -> tuple[Node | None, str | None]:
    """Return what a node looks into, and by which literal key, None if that is not a literal; None if it does not."""
    if isinstance(node, Select):
        return node.operand, node.field
    if isinstance(node, Call) and node.function in _INDEXED and len(node.args) == 2:
        key = node.args[1]
        return node.args[0], key.value if isinstance(key, Const) and isinstance(key.value, str) else None
    if isinstance(node, Call) and node.function == "@in" and len(node.args) == 2:
        key = node.args[0]
        return node.args[1], key.value if isinstance(key, Const) and isinstance(key.value, str) else None
    return None, None
