"""One line of the trail: what has happened to a pod's cards, written as JSON (reports/record_reader.py reads it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from gpuledger.formats.custom_resource.stored_card import amounts_json
from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod, Share
from gpuledger.reports.cards import pod_json


class RecordKind(StrEnum):
    """The kind of an event."""

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
    CORDONED = "cordoned"
    """A person keeps new pods off the card. This and the next one are said of no pod."""
    UNCORDONED = "uncordoned"
    """The card takes new pods again, as far as persons are concerned."""
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
    ACTIVE = "active"
    """A replica of the operator has become the active one. Said of no pod, and with the settings that it has."""


def time_text(unix_s: float) -> str:
    """Return a time as records have it."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of an operator that becomes active: version, and settings that are not the defaults."""

    @property
    def key(self) -> int:
        """Return what is the same for each copy of the record, and only for those. Another process has another one."""
        pod = self.pod
        who = pod.uid, pod.namespace, pod.name, self.gang
        return hash(
            (round(self.unix_s * 1000), self.kind, *who, self.node_name, self.text, *(s.uuid for s in self.shares))
        )

    def json(self) -> Json:
        """Return the record as it goes over the wire, and into a file."""
        return {
            "time": time_text(self.unix_s),
            "kind": self.kind.value,
            **pod_json(self.pod),
            "gang": self.gang or None,
            "priority": self.pod.priority,
            "node": self.node_name,
            "cards": [{"uuid": share.uuid, **amounts_json(share.amounts)} for share in self.shares],
            "text": self.text,
            "alternatives": [{"node": each.node_name, "rank": list(each.rank)} for each in self.ranked],
            **({"settings": dict(self.settings)} if self.settings else {}),
        }


LONGEST_TEXT = 4_000
"""Of a record, in characters: names of victims, or reasons of many nodes, can be long together."""
