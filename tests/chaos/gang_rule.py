"""No member of a gang is bound before as many as the gang needs have their shares in the ledger.

Checked on every change of a pod or a card, in etcd's order. A member that was there when the others' shares were
entered may be gone by the time at which the last Binding arrives: so what counts is whether all were there at one
moment since the bound pod's own share was entered. That share may be marked for taking back when the Binding arrives,
by a second operator whose own Binding has just failed: it is not gone, and both operators let it stand.

A gang whose pods say different numbers is not checked: a pod that says another one may be created after the operator
has let a member be bound, and before that Binding arrives.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chaos.arithmetic import asks_of, has_ended, holders_of, is_bound
from chaos.history import Change

Json = dict[str, Any]

GANG, MINIMUM = "gpuledger.dev/gang", "gpuledger.dev/gang-minimum"
"""Labels, as the documents have them."""
RELEASING = "releasing"
"""The state of a share that is being taken back. It may yet be found to be in use, and stay."""


class GangName(NamedTuple):
    """A gang's namespace and name."""

    namespace: str
    name: str


def gang_of(pod: Json) -> tuple[GangName, int] | None:
    """Return a pod's gang, and how many members it says are needed; None if it is of none that can be had."""
    labels = pod["metadata"].get("labels") or {}
    name, said = labels.get(GANG), labels.get(MINIMUM, "")
    if not name or not said.isdecimal() or not asks_of(pod):
        return None
    return GangName(pod["metadata"]["namespace"], name), int(said)


@dataclass
class _Gang:
    """What pods and cards say of a gang."""

    minima: dict[str, int] = field(default_factory=dict)  # UID of a pod that lives -> the minimum that it says
    cards: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # pod UID -> UUIDs
    leaving: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # the same, being taken back
    whole: set[str] = field(default_factory=set)  # UIDs that had shares when the gang had all that it needs

    def look(self, asked: dict[str, int]) -> None:
        """Note who is there now; `asked` is pod UID -> how many cards it asks for."""
        there = {uid for uid, cards in self.cards.items() if len(cards) >= asked[uid]}
        self.whole = {uid for uid in self.whole if len(self.cards[uid] | self.leaving[uid]) >= asked[uid]}
        if len(there) >= max(self.minima.values(), default=0):
            self.whole |= there


class GangRule:
    """Takes all changes since the cluster was empty; `checks` are the Bindings of members that it has seen."""

    def __init__(self) -> None:
        self.checks = 0
        self._gangs: dict[GangName, _Gang] = defaultdict(_Gang)
        self._of_pod: dict[str, GangName] = {}  # pod UID -> its gang
        self._asked: dict[str, int] = {}  # pod UID -> how many cards it asks for

    def take(self, change: Change) -> str:
        """Return what is wrong with a change: a Binding that came too early. Empty: nothing."""
        if change.kind == "card":
            self._take_card(change)
        elif change.kind == "pod":
            return self._take_pod(change)
        return ""

    def _take_card(self, change: Change) -> None:
        uuid = (change.now or change.before or {})["spec"]["uuid"]
        before, now = _states(change.before), _states(change.now)
        for uid in before.keys() | now.keys():
            name, state = self._of_pod.get(uid), now.get(uid)
            if name is not None and state != before.get(uid):
                gang = self._gangs[name]
                for shares, has in ((gang.cards, state not in {None, RELEASING}), (gang.leaving, state == RELEASING)):
                    shares[uid].add(uuid) if has else shares[uid].discard(uuid)
                gang.look(self._asked)

    def _take_pod(self, change: Change) -> str:
        pod = change.now or change.before or {}
        uid, found = pod["metadata"]["uid"], gang_of(pod)
        last = self._of_pod.get(uid)
        if last is not None and (found is None or change.now is None or has_ended(pod) or found[0] != last):
            self._gangs[last].minima.pop(uid, None)
            self._gangs[last].look(self._asked)
        if found is None or change.now is None or has_ended(pod):
            return ""
        name, minimum = found
        gang = self._gangs[name]
        self._of_pod[uid], self._asked[uid] = name, max(ask.cards for ask in asks_of(pod))
        gang.minima[uid] = minimum
        gang.look(self._asked)
        if change.before is None or is_bound(change.before) or not is_bound(pod):
            return ""
        if len(set(gang.minima.values())) > 1:
            return ""
        self.checks += 1
        if uid in gang.whole:
            return ""
        there = sum(bool(cards) for cards in gang.cards.values())
        return f"{name.namespace}/{pod['metadata']['name']} of gang {name.name}: {there} of {minimum} have their shares"


def _states(card: Json | None) -> dict[str, str]:
    """Return the state of each pod's share, by the pod's UID."""
    return {holder["podUID"]: holder["state"] for holder in holders_of(card or {})}
