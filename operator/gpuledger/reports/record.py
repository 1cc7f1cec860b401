"""What has happened to a pod's cards: one line of the trail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from gpuledger.model.share import Pod, Share
from gpuledger.reports.cards import amounts_json

Json = dict[str, Any]


class RecordKind(StrEnum):
    """What it was."""

    ASSIGNED = "assigned"
    """The pod was bound, with these cards."""
    RELEASED = "released"
    """The pod's shares were taken out of the ledger."""
    ADOPTED = "adopted"
    """The shares of a pod that was bound before were entered."""
    REFUSED = "refused"
    """No node takes the pod; said once, until the reason is another one."""
    PREEMPTING = "preempting"
    """Others are to leave these cards for the pod."""
    EVICTED = "evicted"
    """The pod was evicted, for another one."""
    GIVEN_UP = "given-up"
    """A preemption for the pod has ended without cards."""


class RankedNode(NamedTuple):
    """A node that was compared with others, and the numbers that it was compared by: the lowest is preferred."""

    node_name: str
    rank: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One line."""

    unix_s: float
    kind: RecordKind
    pod: Pod
    node_name: str
    shares: Sequence[Share]
    text: str
    """Why, or what for, in a sentence."""
    ranked: Sequence[RankedNode] = ()
    """The node that was chosen and the next best ones."""

    def json(self) -> Json:
        """Return the record as it goes over the wire, and into a file."""
        return {
            "time": datetime.fromtimestamp(self.unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "kind": self.kind.value,
            "namespace": self.pod.namespace,
            "pod": self.pod.name,
            "podUID": self.pod.uid,
            "priority": self.pod.priority,
            "node": self.node_name,
            "cards": [{"uuid": share.uuid, **amounts_json(share.amounts)} for share in self.shares],
            "text": self.text,
            "alternatives": [{"node": each.node_name, "rank": list(each.rank)} for each in self.ranked],
        }
