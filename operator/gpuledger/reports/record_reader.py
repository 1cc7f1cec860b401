"""Reads records from lines of JSON.

Records outlive the process that made them, in files and in the memory of other replicas. So they are read strictly: a
line that is torn, too long, or of another release is none.
"""

from __future__ import annotations

from math import inf
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput
from gpuledger.model.share import Pod, Share
from gpuledger.reports.records import LONGEST_TEXT, RankedNode, Record, RecordKind

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
