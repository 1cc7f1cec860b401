"""ResourceClaims of a pod, as far as its cards are concerned."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


def entry_text(name: str) -> str:
    """Return what people call an entry of a request or a share: a container, or a request of a claim."""
    claim, _, request = name.partition("/")
    return f"claim {claim}, request {request}" if request else claim


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim that a pod brings, and that is to be allocated together with it."""

    name: str
    """In the pod's spec; its entries in requests and shares are called `<name>/<request>`."""
    object_name: str = ""
    """Of the ResourceClaim; empty as long as it has not been created from its template."""
    uid: str = ""
    """Of the ResourceClaim; empty likewise."""
    shared: bool = False
    """The pod names the ResourceClaim itself, so other pods can join it."""
    wishes: Hashable = None
    """What the claim asks for: compared with what its object says before cards are entered for it."""

    def holds(self, entry: str) -> bool:
        """Tell whether an entry of a request or a share is one of the claim's."""
        return entry.startswith(f"{self.name}/")


@dataclass(frozen=True, slots=True)
class JoinedClaim:
    """A claim that is allocated already, for another pod: who joins shares what that one holds, on its node."""

    name: str
    object_name: str
    uid: str
    node_name: str
