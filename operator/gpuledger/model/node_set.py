"""Sets of node names that take one bit for each node of the cluster: thousands of waiting pods have one each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from weakref import WeakValueDictionary


class NodeSets:
    """All such sets of one cluster. Equal ones are the same object, as long as one of them is in use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # name of a node -> its bit; nodes that are gone keep theirs
        self._known: WeakValueDictionary[bytes, NodeSet] = WeakValueDictionary()

    def of(self, names: Iterable[str]) -> NodeSet:
        """Return the set of these names."""
        numbers = self._numbers
        own = [numbers.setdefault(name, len(numbers)) for name in names]
        bits = bytearray(max(own, default=-1) // 8 + 1)
        for number in own:
            bits[number >> 3] |= 1 << (number & 7)
        key = bytes(bits)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = NodeSet(numbers, key)
        return known


class NodeSet(AbstractSet[str]):
    """Names of nodes, as `NodeSets` makes it."""

    __slots__ = ("__weakref__", "_bits", "_numbers")

    def __init__(self, numbers: dict[str, int], bits: bytes) -> None:
        self._numbers = numbers
        self._bits = bits

    @classmethod
    def _from_iterable(cls, names: Iterable[str]) -> AbstractSet[str]:  # type: ignore[override]
        return frozenset(names)  # what `&` and `|` make

    def __contains__(self, name: object) -> bool:
        number = self._numbers.get(name)  # type: ignore[call-overload]  # anything can be looked for
        if number is None or number >> 3 >= len(self._bits):
            return False
        return bool(self._bits[number >> 3] >> (number & 7) & 1)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._numbers if name in self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NodeSet) and other._numbers is self._numbers:
            return self._bits == other._bits
        return super().__eq__(other)

    def __hash__(self) -> int:
        """Return what is equal for equal sets of one cluster, without a look at the names."""
        return hash(self._bits)

    def __len__(self) -> int:
        return int.from_bytes(self._bits, "little").bit_count()
