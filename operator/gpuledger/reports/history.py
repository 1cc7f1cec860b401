"""What has happened to a pod's cards: one line of the trail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod, Share
from gpuledger.reports.cards import amounts_json


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
    GANG_PLANNED = "gang-planned"
    """Cards are kept for all members of a gang that are missing. This and what follows is said of no single pod."""
    GANG_FIRST = "gang-first"
    """Many have started that came after it: it goes first for a while."""
    GANG_GATHERED = "gang-gathered"
    """All of them stand in Bind, and their shares are in the ledger."""
    GANG_BOUND = "gang-bound"
    """As many are bound as it needs."""
    GANG_GIVEN_UP = "gang-given-up"
    """Members that stood in Bind were sent back; said once for each reason, until the gang is bound."""


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
    gang: str = ""
    """The name of the pod's gang in its namespace; empty if it has none. Of a record of a gang, the pod has no name."""

    def json(self) -> Json:
        """Return the record as it goes over the wire, and into a file."""
        return {
            "time": datetime.fromtimestamp(self.unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "kind": self.kind.value,
            "namespace": self.pod.namespace,
            "pod": self.pod.name,
            "podUID": self.pod.uid,
            "gang": self.gang or None,
            "priority": self.pod.priority,
            "node": self.node_name,
            "cards": [{"uuid": share.uuid, **amounts_json(share.amounts)} for share in self.shares],
            "text": self.text,
            "alternatives": [{"node": each.node_name, "rank": list(each.rank)} for each in self.ranked],
        }
