"""Our check says of a workload that it is ready only if there were cards for its pods, and lets none wait that fits.

What there was is seen generously: an operator whose watch is behind, or whose write arrives late, may go by what a card
was some time before. That other workloads are to get the same room is not seen here; their pods show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chaos.arithmetic import AMOUNTS, asks_of, holders_of, is_bound, totals, why_it_waits
from chaos.history import Change
from chaos.quotas import Left
from chaos.room import amounts_on, places, room_of
from chaos.workloads import WORKLOAD_ANNOTATION, count_of, is_true, pod_like, state_of

Json = dict[str, Any]

LATE_S = 30.0
"""How long after a card has changed a check may go by what it was before."""

WAITS = "a workload waits that has room"


class WorkloadRule:
    """Takes all changes since the cluster was empty; `checks` are the workloads that became ready."""

    def __init__(self) -> None:
        self.checks = 0
        self._cards: dict[str, list[tuple[float, Json | None]]] = {}  # UUID -> when it was what, the oldest first

    def take(self, change: Change) -> str:
        """Return what is wrong with a change; empty: nothing."""
        if change.kind == "card":
            uuid = (change.now or change.before or {})["spec"]["uuid"]
            was = self._cards.setdefault(uuid, [])
            was.append((change.at_s, change.now))
            while len(was) > 1 and was[1][0] < change.at_s - LATE_S:
                del was[0]
        before, now = state_of(change.before or {}), state_of(change.now or {})
        is_news = change.kind == "workload" and now == "Ready" != before
        return self._problem(change.at_s, change.now) if is_news and change.now is not None else ""

    def _problem(self, at_s: float, workload: Json) -> str:
        self.checks += 1
        (ask,) = asks_of(pod_like(workload))
        cards = [_at_best([card for _, card in _since(was, at_s) if card is not None]) for was in self._cards.values()]
        found = places(pod_like(workload), [card for card in cards if card is not None], free_cpus=None)
        if found >= count_of(workload):
            return ""
        name = f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"
        return f"{name} has {count_of(workload)} pods with {ask}, and there was room for {found}"


def _since(was: list[tuple[float, Json | None]], at_s: float) -> list[tuple[float, Json | None]]:
    first = max((place for place, (from_s, _) in enumerate(was) if from_s <= at_s - LATE_S), default=0)
    return was[first:]


def _at_best(states: list[Json]) -> Json | None:
    """Return a card as it would be if everything that is good of any of these had been so at once."""
    ready = [each for each in states if (each.get("status") or {}).get("phase") == "Ready"]
    if not ready:
        return None
    emptiest = min(ready, key=lambda each: len(holders_of(each)))
    used = {amount: min(totals(holders_of(each))[amount] for each in ready) for amount in AMOUNTS}
    capacity = {amount: max(each["spec"]["capacity"][amount] for each in ready) for amount in AMOUNTS}
    idle = not holders_of(emptiest)
    shut = all(any(holder["exclusive"] for holder in holders_of(each)) for each in ready)
    holders = [] if idle else [{**used, "exclusive": shut}]
    return {"spec": {**emptiest["spec"], "capacity": capacity}, "status": {"phase": "Ready", "holders": holders}}


def unsettled_workloads(
    workloads: Mapping[str, Json],
    cards: Mapping[str, Json],
    pods: Mapping[str, Json],
    nodes: Mapping[str, Json],
    left: Left,
) -> Iterator[tuple[str, str]]:
    """Yield the workloads that wait although there is room for all of their pods, and those whose pods do not come.

    Not those whose pods wait for the quota of their namespace: it was lowered after they were ready.
    """
    room = room_of(cards, nodes)
    for key, workload in workloads.items():
        if workload["metadata"].get("deletionTimestamp"):
            continue
        like, count = pod_like(workload), count_of(workload)
        namespace, name = key.split("/")
        (ask,) = asks_of(like)
        by_one = amounts_on(ask, cards.values())
        if state_of(workload) == "Pending" and is_true(workload, "QuotaReserved"):
            found = sum(places(like, each, free_cpus=None) for each in room.values())
            wanted = {field: most * count for field, most in by_one.items()}
            if found >= count and left.allows(namespace, wanted):
                yield WAITS, f"{key} has {count} pods, and there is room for {found}"
        if state_of(workload) == "Ready" and is_true(workload, "Admitted") and left.allows(namespace, by_one):
            its = [pod for pod in pods.values() if _is_of(pod, namespace, name)]
            waiting = {pod["metadata"]["name"]: why_it_waits(pod) for pod in its if not is_bound(pod)}
            if waiting:
                yield "a workload is ready, and its pods wait", f"{key}: {waiting}"


def _is_of(pod: Json, namespace: str, name: str) -> bool:
    metadata = pod["metadata"]
    its = (metadata.get("annotations") or {}).get(WORKLOAD_ANNOTATION)
    return metadata["namespace"] == namespace and its == name and not metadata.get("deletionTimestamp")
