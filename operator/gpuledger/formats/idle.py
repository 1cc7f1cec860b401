"""Which shares of a node are idle, by its agent's word, in an annotation of the Node: bounded JSON.

    {"agent": "91ab...", "shares": {"6d0c...": {"GPU-8f2e...": ["2026-11-30T09:12:00Z", 340]}}}

UID of the agent's own pod, which has seen that: another one, maybe of another release, may not know of the annotation.
UID of a pod, and UUID of a card of which it holds a share: since when the share is idle now, or null, and for how many
seconds it was idle before. Times are those of the API server's clock. What is not named has not been idle, or nothing
tells what it does: no share is idle without evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from gpuledger.formats.custom_resource.stored_card import UUID_PATTERN
from gpuledger.model.clock import rfc3339, time_of
from gpuledger.model.errors import BadInput

IDLE_ANNOTATION: Final = "gpuledger.dev/idle-shares"

MOST_SHARES: Final = 512
"""In one annotation: some 50 KiB. Those that have been idle for longest are named."""

LONGEST_TEXT: Final = 128 * 1024

KEEP_ANNOTATION: Final = "gpuledger.dev/idle"
"""On a pod: `keep` asks that its idle shares stay."""

POLICY_ANNOTATION: Final = "gpuledger.dev/idle-policy"
"""On a Namespace: what becomes of its idle shares, in place of the setting's word."""

LONGEST_UID: Final = 64


@dataclass(frozen=True, slots=True)
class Idleness:
    """For how long a share has been idle."""

    since: datetime | None
    """None: it is in use."""
    before_s: int = 0
    """Before that."""

    def total_s(self, now: datetime) -> int:
        """Return for how many seconds in all, until now."""
        return self.before_s + self.now_s(now)

    def now_s(self, now: datetime) -> int:
        """Return for how many seconds without a break; 0 for one that is in use."""
        return 0 if self.since is None else max(0, int((now - self.since).total_seconds()))


ShareKey = tuple[str, str]
"""UID of a pod, UUID of a card."""


@dataclass(frozen=True, slots=True)
class IdleWord:
    """What an agent says of its node's shares."""

    agent_uid: str = ""
    """Of its pod."""
    shares: Mapping[ShareKey, Idleness] = field(default_factory=dict)


NO_WORD: Final = IdleWord()


def idle_annotation(shares: Mapping[ShareKey, Idleness], now: datetime, agent_uid: str) -> str:
    """Return the annotation; empty for none."""
    longest = sorted(shares, key=lambda key: (-shares[key].total_s(now), key))[:MOST_SHARES]
    found: dict[str, dict[str, list[str | int | None]]] = {}
    for uid, uuid in sorted(longest):
        each = shares[uid, uuid]
        found.setdefault(uid, {})[uuid] = [rfc3339(each.since) if each.since else None, each.before_s]
    return orjson.dumps({"agent": agent_uid, "shares": found}).decode() if found else ""


def read_idle(node: Mapping[str, Any]) -> IdleWord:
    """Return what a Node's annotation says. Raises BadInput."""
    text = ((node.get("metadata") or {}).get("annotations") or {}).get(IDLE_ANNOTATION) or ""
    if not text:
        return NO_WORD
    if len(text) > LONGEST_TEXT:
        raise BadInput(f"{IDLE_ANNOTATION} is longer than {LONGEST_TEXT:,} characters")
    try:
        word = orjson.loads(text)
        agent_uid, said = str(word["agent"])[:LONGEST_UID], word["shares"]
        found = {(uid, uuid): _idleness(*each) for uid, cards in said.items() for uuid, each in cards.items()}
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise BadInput(f"{IDLE_ANNOTATION} is not UIDs of pods with UUIDs of cards and times: {error!r}") from None
    for uid, uuid in found:
        if len(uid) > LONGEST_UID or not re.fullmatch(UUID_PATTERN, uuid):
            raise BadInput(f"{IDLE_ANNOTATION} names {uid[:LONGEST_UID]!r} and {uuid[:LONGEST_UID]!r}: no pod and card")
    return IdleWord(agent_uid, found)


def _idleness(since: object, before_s: object) -> Idleness:
    moment = time_of(since) if isinstance(since, str) else None
    if (since is not None and moment is None) or not isinstance(before_s, int) or not 0 <= before_s < 2**40:
        raise ValueError(f"[{since!r}, {before_s!r}]"[:100])
    return Idleness(moment and moment.astimezone(UTC), before_s)


def wants_to_keep(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod asks that its idle shares stay."""
    return ((pod["metadata"].get("annotations") or {}).get(KEEP_ANNOTATION)) == "keep"
