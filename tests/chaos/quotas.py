"""No Binding brings a namespace beyond its quota, and at rest nobody waits who may have what there is.

What counts as in force is what the operator can know: an operator whose watch is behind, or whose Binding arrives late,
goes by what a ResourceQuota said some time before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chaos.arithmetic import holders_of, is_bound, number_of, told_cards
from chaos.claims import has_claims
from chaos.history import Change

Json = dict[str, Any]

COUNTED = {
    "limits.nvidia.com/gpumem": "memoryMiB",
    "limits.nvidia.com/gpucores": "cores",
    "limits.nvidia.com/gpu": "number",
}
"""Key of a ResourceQuota -> what it counts of every share."""

LATE_S = 30.0
"""How long after a ResourceQuota has changed a Binding may go by what it said before: a watch is held up for less, a
Binding applied later, an operator started again without the list of quotas."""

ENDLESS = 2**63

NAME = "gpus"


def quotas_path(namespace: str) -> str:
    """Return the path of a namespace's ResourceQuotas."""
    return f"/api/v1/namespaces/{namespace}/resourcequotas"


def quota_of(hard: Mapping[str, int]) -> Json:
    """Return a ResourceQuota, as it is created."""
    return {"metadata": {"name": NAME}, "spec": {"hard": {key: str(most) for key, most in hard.items()}}}


def limits_of(quota: Json | None) -> dict[str, int]:
    """Return what a ResourceQuota allows, by the keys of COUNTED."""
    hard = (quota or {}).get("spec", {}).get("hard") or {}
    return {key: number_of(hard[key]) for key in COUNTED if key in hard}


class QuotaRule:
    """Takes all changes since the cluster was empty; `checks` are the Bindings in namespaces with a quota."""

    def __init__(self) -> None:
        self.checks = 0
        self._said: dict[str, list[tuple[float, dict[str, int]]]] = {}  # key of a quota -> when it said what
        self._cards: dict[str, list[Json]] = {}  # UUID -> holders
        self._bound: dict[str, frozenset[str] | None] = {}  # UID of a pod that has or had a node -> UUIDs of its cards

    def take(self, change: Change) -> str:
        """Return what is wrong with a change; empty: nothing."""
        if change.kind == "quota":
            self._said.setdefault(change.key, [(float("-inf"), {})]).append((change.at_s, limits_of(change.now)))
        elif change.kind == "card":
            self._cards[(change.now or change.before or {})["spec"]["uuid"]] = holders_of(change.now or {})
        elif change.kind == "pod" and change.now is not None and is_bound(change.now):
            uid = change.now["metadata"]["uid"]
            if uid not in self._bound:
                self._bound[uid] = None if has_claims(change.now) else told_cards(change.now)
                return "; ".join(self._problems(change.at_s, change.now))
        return ""

    def _problems(self, at_s: float, pod: Json) -> Iterator[str]:
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        held = [
            each
            for uuid, holders in self._cards.items()
            for each in holders
            if each["namespace"] == namespace and self._counts(each["podUID"], uuid)
        ]
        for key, said in self._said.items():
            if not key.startswith(f"{namespace}/"):
                continue
            self.checks += 1
            for name, most in _most(said, at_s).items():
                field = COUNTED[name]
                own = sum(each[field] for each in held if each["podUID"] == uid)
                used = sum(each[field] for each in held)
                if own and used > most:
                    yield f"{namespace}/{pod['metadata']['name']} is bound, with which {name} is {used} of {most}"

    def _counts(self, uid: str, uuid: str) -> bool:
        """Return whether a pod's share of a card is there to stay.

        One that was never bound may be given back; and so may a share that its pod was not told of, which another
        operator has entered that wanted to bind it as well. By claims, a pod may get shares that others leave.
        """
        told = self._bound.get(uid, frozenset())
        return told is None or uuid in told


def _most(said: list[tuple[float, dict[str, int]]], at_s: float) -> dict[str, int]:
    """Return the most that each key has allowed since LATE_S ago; nothing of one that was not there all the time."""
    since = max(place for place, (from_s, _) in enumerate(said) if from_s <= at_s - LATE_S)
    seen = [limits for _, limits in said[since:]]
    return {name: max(each[name] for each in seen) for name in seen[0] if all(name in each for each in seen)}


class Left:
    """What the quotas of namespaces leave at rest."""

    def __init__(self, quotas: Mapping[str, Json], cards: Mapping[str, Json]) -> None:
        self._left: dict[str, dict[str, int]] = {}  # namespace -> what is counted -> how much is left
        every = [each for card in cards.values() for each in holders_of(card)]
        for key, quota in quotas.items():
            namespace = key.partition("/")[0]
            left = self._left.setdefault(namespace, {})
            for name, most in limits_of(quota).items():
                field = COUNTED[name]
                used = sum(each[field] for each in every if each["namespace"] == namespace)
                left[field] = min(left.get(field, ENDLESS), most - used)

    def allows(self, namespace: str, amounts: Mapping[str, int]) -> bool:
        """Return whether a namespace may have so much more, of each thing that is counted."""
        left = self._left.get(namespace, {})
        return all(not amounts[field] or amounts[field] <= left.get(field, ENDLESS) for field in amounts)
