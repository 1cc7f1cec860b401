"""What one part of the operator tells others: a grep for a class finds who tells it and who listens.

What the ledger and the journal say, they say by listeners of their own; so does a room to its own parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuledger.model.card import Payer


@dataclass(frozen=True, slots=True)
class PodRefused:
    """No node could take a pod, which waits for cards alone."""

    uid: str


@dataclass(frozen=True, slots=True)
class SchedulerRefused:
    """kube-scheduler itself lets a pod go to no node, for another reason than before."""

    uid: str
    rules_out: bool
    """No node would take it, whatever other pods leave."""


@dataclass(frozen=True, slots=True)
class MemberRefused:
    """A pod was refused, as its gang waits."""

    uid: str


@dataclass(frozen=True, slots=True)
class PodSeenBound:
    """A pod was seen bound for the first time."""


@dataclass(frozen=True, slots=True)
class PodNotBound:
    """The shares of a pod are about to be taken back, because it was not bound."""

    uid: str


@dataclass(frozen=True, slots=True)
class AgentChanged:
    """A node's agent has become Ready, is not any more, or is another one."""

    node_name: str


@dataclass(frozen=True, slots=True)
class KubeletChanged:
    """A node's kubelet hangs, or starts pods again."""

    node_name: str


@dataclass(frozen=True, slots=True)
class EndsReported:
    """A node may say something else of pods that have ended."""

    node_name: str


@dataclass(frozen=True, slots=True)
class ConfirmationChanged:
    """Cards of a node wait for its agent's word on what containers have, or have it."""

    node_name: str


@dataclass(frozen=True, slots=True)
class SelectorsAllowed:
    """More selectors that a namespace pays for may be evaluated."""

    namespace: str
    payer: Payer


@dataclass(frozen=True, slots=True)
class PodYields:
    """A pod whose cards are idle leaves them from now on for any pod that waits."""


Event = TypeVar("Event")


class Bus:
    """Calls the listeners of an event, in the order in which they were added, before `tell` returns."""

    def __init__(self) -> None:
        self._listeners: defaultdict[type, list[Callable[[Any], None]]] = defaultdict(list)

    def on(self, kind: type[Event], listener: Callable[[Event], None]) -> None:
        """Have a listener called with each event of a kind."""
        self._listeners[kind].append(listener)

    def tell(self, event: object) -> None:
        """Call the listeners of an event."""
        for listener in self._listeners[type(event)]:
            listener(event)
