"""Whom a card reaches, and how well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from sys import intern

PATTERNS_SHARED = 4096
"""Different rows of scores of which there is one object each; nodes are built in a few ways."""


class Links(Mapping[str, int]):
    """Peer card's UUID -> link score, in less memory than a dict: there are tens of thousands of them."""

    __slots__ = ("_peers", "_scores")

    def __init__(self, links: Mapping[str, int]) -> None:
        peers = sorted(links)
        self._peers = tuple(map(intern, peers))
        self._scores = _shared(tuple(links[peer] for peer in peers))

    def __getitem__(self, peer: str) -> int:
        try:
            return self._scores[self._peers.index(peer)]
        except ValueError:
            raise KeyError(peer) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Links):
            return self._scores == other._scores and self._peers == other._peers
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as every mapping

    def __repr__(self) -> str:
        return f"Links({dict(self)})"


@lru_cache(PATTERNS_SHARED)
def _shared(scores: tuple[int, ...]) -> tuple[int, ...]:
    return scores
