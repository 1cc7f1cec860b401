"""One line of the trail: what has happened to a pod's cards, written as JSON, and read again.

Records outlive the process that made them, in files and in the memory of other replicas. So they are read strictly: a
line that is torn, too long, or of another release is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from typing import Annotated, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gpuledger.formats.custom_resource.stored_card import amounts_json
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput
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

LONGEST_LINE_BYTES = 64 * 1024
"""A record of sixteen cards takes some 2,000; text and names can take up to six bytes a character."""

FUTURE_S = 300.0
"""A record that is later than now by more than this is by a clock that is wrong, and would stay the latest."""

KINDS = frozenset(RecordKind)

_Text = Annotated[str, StringConstraints(max_length=LONGEST_TEXT, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
_Name = Annotated[str, StringConstraints(max_length=253, pattern=r"^[ -~]*$")]
_Number = Annotated[int, Field(ge=-(2**60), le=2**60)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _Card(_Part):
    uuid: _Name
    memory_mib: _Number = Field(alias="memoryMiB")
    cores: _Number
    number: _Number


class _Alternative(_Part):
    node: _Name
    rank: list[float | None]
    """None: JSON has no word for infinity."""


class _Line(_Part):
    time: AwareDatetime
    kind: _Name
    namespace: _Name
    pod: _Name
    pod_uid: _Name = Field(alias="podUID")
    gang: _Name | None
    priority: _Number
    node: _Name
    cards: list[_Card]
    text: _Text
    alternatives: list[_Alternative]
    settings: dict[_Name, _Text] = {}


def record_of(line: bytes, now_s: float) -> Record:
    """Return the record of a line, without its end; `now_s` is the Unix time. Raises BadInput."""
    if len(line) > LONGEST_LINE_BYTES:
        raise BadInput(f"a line of {len(line):,} bytes is no record: at most {LONGEST_LINE_BYTES:,}")
    try:
        found = _Line.model_validate_json(line)
        unix_s = found.time.timestamp()
    except (ValidationError, OverflowError) as error:
        raise BadInput(f"a line is no record: {error}") from error
    if found.kind not in KINDS:
        raise BadInput(f"a record of kind {found.kind!r} is of another release")
    if unix_s > now_s + FUTURE_S:
        raise BadInput(f"a record is of {found.time}, which has not come yet")
    pod = Pod(found.pod_uid, found.namespace, found.pod, found.priority)
    shares = tuple(
        Share(card.uuid, Amounts(card.memory_mib, card.cores, card.number), exclusive=False, containers=())
        for card in found.cards
    )
    ranked = tuple(
        RankedNode(each.node, tuple(inf if rank is None else rank for rank in each.rank)) for each in found.alternatives
    )
    kind, gang = RecordKind(found.kind), found.gang or ""
    return Record(unix_s, kind, pod, found.node, shares, found.text, ranked, gang, found.settings)
