"""Each share that a pod has had is listed by its card when it ends, and is in one record before it is off the list.

By the keys of shares alone: what a record gains is, to the millisecond, what the shares had that it has entered.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from chaos.arithmetic import holders_of, is_bound, told_cards
from chaos.history import Change

Json = dict[str, Any]


class AccountRule:
    """Takes all changes since the cluster was empty; `checks` are the shares that were entered in records."""

    def __init__(self) -> None:
        self.checks = 0
        self.pods: set[str] = set()
        """UIDs of the pods of which the last change said something wrong."""
        self._listed: dict[str, int] = {}  # key of a share that a card has listed as ended -> milliseconds of a card
        self._entered: set[str] = set()  # keys that were entered in a record
        self._bound: dict[str, tuple[str, frozenset[str]]] = {}  # UID of a pod that has or had a node -> node, cards

    def take(self, change: Change) -> str:
        """Return what is wrong with a change; empty: nothing."""
        self.pods = set()
        if change.kind == "card":
            return "; ".join(self._card(change))
        if change.kind == "usage":
            return "; ".join(self._record(change))
        if change.kind == "pod" and change.now is not None and is_bound(change.now):
            self._bound[change.now["metadata"]["uid"]] = (change.now["spec"]["nodeName"], told_cards(change.now))
        return ""

    def _card(self, change: Change) -> Iterator[str]:
        before, now = _ended(change.before), _ended(change.now)
        for key in now.keys() - before.keys():
            if key in self._listed:
                self.pods.add(_pod_uid(key))
                yield f"{change.key} lists {key} for the second time"
            self._listed[key] = _card_ms(now[key])
        for key in before.keys() - now.keys():
            if key not in self._entered:
                self.pods.add(_pod_uid(key))
                yield f"{change.key} does not list {key} any more, and no record has it"
        held = {holder["podUID"] for holder in holders_of(change.now or {})}
        for holder in holders_of(change.before or {}):
            if holder["podUID"] not in held and self._has_had(change, holder) and _key(holder) not in now:
                self.pods.add(holder["podUID"])
                yield f"{change.key} does not list what {holder['namespace']}/{holder['pod']} has had"

    def _has_had(self, change: Change, holder: Json) -> bool:
        """Return whether a pod was bound with a share, and for long enough that it counts."""
        spec = (change.before or change.now or {})["spec"]
        node_name, cards = self._bound.get(holder["podUID"], ("", frozenset[str]()))
        return "since" in holder and node_name == spec["nodeName"] and spec["uuid"] in cards

    def _record(self, change: Change) -> Iterator[str]:
        if change.now is None:
            return
        before, now = (_status(each) for each in (change.before, change.now))
        new = {each["key"] for each in now["entered"]} - {each["key"] for each in before["entered"]}
        for key in new:
            self.checks += 1
            if key in self._entered:
                self.pods.add(_pod_uid(key))
                yield f"{change.key} has entered {key} for the second time"
            if key not in self._listed:
                self.pods.add(_pod_uid(key))
                yield f"{change.key} has entered {key}, which no card has listed"
        self._entered |= new
        gained, had = _sum(now) - _sum(before), sum(self._listed.get(key, 0) for key in new)
        if gained != had:
            self.pods |= set(map(_pod_uid, new))
            yield f"{change.key} has gained {gained} ms by shares that had {had} ms"


def _status(usage: Json | None) -> Json:
    return {"entered": [], "lines": "", **((usage or {}).get("status") or {})}


def _sum(status: Json) -> int:
    return sum(int(line["cardMilliseconds"]) for line in csv.DictReader(status["lines"].splitlines()))


def _ended(card: Json | None) -> dict[str, Json]:
    return {each["key"]: each for each in ((card or {}).get("status") or {}).get("ended") or ()}


def _key(holder: Json) -> str:
    return f"{holder.get('attempt', '')}.{holder['podUID']}"


def _pod_uid(key: str) -> str:
    return key.rpartition(".")[2]


def _card_ms(ended: Json) -> int:
    lasted = datetime.fromisoformat(ended["until"]) - datetime.fromisoformat(ended["since"])
    return int(ended["millionths"] * (lasted // timedelta(milliseconds=1)) // 1_000_000)
