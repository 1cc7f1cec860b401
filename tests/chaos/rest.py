"""What must hold once all faults have stopped and everything has had time to be put right."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from chaos.arithmetic import (
    COUNT,
    CPUS_OF_NODE,
    REGISTER,
    Ask,
    asks_of,
    cpus_of,
    has_ended,
    holders_of,
    is_bound,
    told_cards,
    totals,
)
from chaos.checker import Finding
from chaos.gang_rule import GangName, gang_of
from chaos.hostile_user import is_hostile
from chaos.outcome import Outcome

Json = dict[str, Any]

Look = Callable[[], list[Finding]]

GANG_WAITS = "a gang waits that has room"

NOT_BOUND = "the pod is not bound"


def come_to_rest(
    outcome: Outcome[Any], look: Look, pause: Callable[[], None], patience_s: float, longest_s: float
) -> None:
    """Look until nothing is out of order; what still is after some time is a finding.

    `patience_s` begins anew whenever something is put right, until `longest_s` are over. Between looks: `pause`.
    """
    begin_s = progress_s = time.monotonic()
    before: set[tuple[str, ...]] = set()
    while True:
        found, now_s = look(), time.monotonic()
        outcome.looks.append((now_s, found))
        subjects = {(finding.rule, *finding.pods, *finding.cards) for finding in found}
        if before - subjects:
            progress_s = now_s
        before = subjects
        if not found or now_s - progress_s > patience_s or now_s - begin_s > longest_s:
            break
        pause()
    outcome.rest_s = time.monotonic() - begin_s
    outcome.findings += found


def unsettled(
    cards: Mapping[str, Json], pods: Mapping[str, Json], nodes: Mapping[str, Json], now: str
) -> list[Finding]:
    """Return what is not in order: by card UUID, pod UID and node name, as read at one moment of a quiet cluster.

    The time is written as the deadlines are.
    """
    return [
        *_holders(cards, pods, now),
        *_claims(cards, pods),
        *_cards(cards, nodes),
        *_waiting(cards, pods, nodes),
    ]


def miscounted(cards: Mapping[str, Json], metrics: Mapping[str, float]) -> list[Finding]:
    """Compare what the operator has in memory, as its metrics tell, with the ledger."""
    counts = {"gpuledger_cards": len(cards), "gpuledger_holders": sum(len(holders_of(card)) for card in cards.values())}
    return [
        Finding("the operator's memory is not the ledger", f"{name} is {metrics.get(name)}, the ledger has {count}")
        for name, count in counts.items()
        if metrics.get(name) != count
    ]


def _holders(cards: Mapping[str, Json], pods: Mapping[str, Json], now: str) -> Iterator[Finding]:
    """Every share belongs to a pod that lives, is bound, and was told of it.

    Or it is kept for a pod that waits, on a node whose agent is away and may be back, until its deadline.
    """
    for uuid, card in cards.items():
        for holder in holders_of(card):
            why = _why_no_right(uuid, holder, pods.get(holder["podUID"]))
            if why and not (why == NOT_BOUND and _is_kept(card, holder, now)):
                text = f"{holder['namespace']}/{holder['pod']} on card {uuid}, {holder['state']}: {why}"
                yield Finding("a share is left over", text, pods=(holder["podUID"],), cards=(uuid,))
    for uid, pod in pods.items():
        if is_bound(pod) and not has_ended(pod) and asks_of(pod):
            for uuid in told_cards(pod):
                if not any(holder["podUID"] == uid for holder in holders_of(cards.get(uuid, {}))):
                    text = f"{_name(pod)} was told card {uuid}, and is not in its ledger"
                    yield Finding("a bound pod lacks its shares", text, pods=(uid,), cards=(uuid,))


def _why_no_right(uuid: str, holder: Json, pod: Json | None) -> str:
    if pod is None:
        return f"the pod is gone; deadline {holder.get('deadline')}"
    if not is_bound(pod):
        return NOT_BOUND
    if has_ended(pod):
        return "the pod has ended"
    if uuid not in told_cards(pod):
        return "the pod was not told of it"
    return "" if holder["state"] == "allocated" else "the pod is bound and alive"


def _is_kept(card: Json, holder: Json, now: str) -> bool:
    return bool(holder["state"] == "reserved" and card["status"]["phase"] == "Unavailable" and now < holder["deadline"])


def _claims(cards: Mapping[str, Json], pods: Mapping[str, Json]) -> Iterator[Finding]:
    """Room is promised only to pods that wait for it."""
    for uuid, card in cards.items():
        for claim in (card.get("status") or {}).get("claims") or ():
            pod = pods.get(claim["podUID"])
            if pod is None or is_bound(pod):
                text = f"{claim['namespace']}/{claim['pod']} on card {uuid}: the pod is {'bound' if pod else 'gone'}"
                yield Finding("a claim is left over", text, pods=(claim["podUID"],), cards=(uuid,))


# Cards and registers.


def _cards(cards: Mapping[str, Json], nodes: Mapping[str, Json]) -> Iterator[Finding]:
    """Every card that a node reports is in the ledger as it is reported, and every other one only while it is held."""
    reports: dict[str, dict[str, Json]] = {}  # card UUID -> node name -> what that node says
    for name, node in nodes.items():
        for reported in _register(node):
            reports.setdefault(reported["uuid"], {})[name] = reported
    for uuid, reporters in reports.items():
        if uuid not in cards:
            yield Finding("a reported card is not in the ledger", f"{uuid} of {sorted(reporters)}", cards=(uuid,))
    for uuid, card in cards.items():
        problem = _problem(card, reports.get(uuid, {}), nodes)
        if problem:
            yield Finding("a card is not as its node reports it", f"{uuid}: {problem}", cards=(uuid,))


def _problem(card: Json, reporters: Mapping[str, Json], nodes: Mapping[str, Json]) -> str:
    spec, phase = card["spec"], (card.get("status") or {}).get("phase")
    reported = reporters.get(spec["nodeName"])
    if reported is None:
        if not holders_of(card):
            return f"nobody holds it, and its node {spec['nodeName']} does not report it"
        return "" if phase == "Unavailable" else f"its node does not report it, and its phase is {phase}"
    told_capacity = {"memoryMiB": reported["memoryMiB"], "cores": 100, "number": reported["number"]}
    if spec["capacity"] != told_capacity:
        return f"its capacity is {spec['capacity']}, its node says {told_capacity}"
    if spec["healthy"] != reported["healthy"]:
        return f"healthy is {spec['healthy']}, its node says {reported['healthy']}"
    right = "Unavailable" if not _slots(nodes[spec["nodeName"]]) else "Ready" if reported["healthy"] else "Unhealthy"
    return "" if phase == right else f"its phase is {phase}, not {right}"


def _register(node: Json) -> list[Json]:
    return list(json.loads((node["metadata"].get("annotations") or {}).get(REGISTER, "[]")))


def _slots(node: Json) -> int:
    return int((node.get("status") or {}).get("allocatable", {}).get(COUNT, 0))


# Pods that wait.


def _waiting(cards: Mapping[str, Json], pods: Mapping[str, Json], nodes: Mapping[str, Json]) -> Iterator[Finding]:
    """No pod waits that has room. Exact for pods with one container; others are left to the operator.

    So are all hostile pods: nobody promises to bind them.
    """
    room = _room(cards, nodes)
    free = {name: CPUS_OF_NODE - sum(cpus_of(pod) for pod in _living_on(pods, name)) for name in nodes}
    short = _short_gangs(pods)
    for name, (pending, missing) in short.items():
        places = sum(_places(pending[0], room[node], free[node]) for node in room)
        if len(pending) >= missing and places >= missing:
            uids = tuple(pod["metadata"]["uid"] for pod in pending)
            text = f"gang {name} lacks {missing} of its pods, {len(pending)} wait, and there is room for {places}"
            yield Finding(GANG_WAITS, text, pods=uids)
    for uid, pod in pods.items():
        if is_bound(pod) or pod["metadata"].get("deletionTimestamp") or is_hostile(pod):
            continue
        if (gang := gang_of(pod)) and gang[0] in short:
            continue
        asks = asks_of(pod)
        if not asks and nodes:
            yield Finding("a pod waits that has room", f"{_name(pod)} waits, and asks for no card", pods=(uid,))
        fitting = [uuid for name in room if free[name] >= cpus_of(pod) for uuid in _fitting(asks, room[name])]
        if fitting:
            text = f"{_name(pod)} waits, and there is room on {', '.join(fitting)}"
            yield Finding("a pod waits that has room", text, pods=(uid,), cards=tuple(fitting))


def _short_gangs(pods: Mapping[str, Json]) -> dict[GangName, tuple[list[Json], int]]:
    """Return the gangs that wait: members without a node, and how many more have to be bound at once."""
    pending: dict[GangName, list[Json]] = {}
    bound: Counter[GangName] = Counter()
    minimum: dict[GangName, int] = {}
    for pod in pods.values():
        gang = gang_of(pod)
        if gang is not None and not has_ended(pod) and not is_hostile(pod):
            name, said = gang
            minimum[name] = max(minimum.get(name, 0), said)
            if is_bound(pod):
                bound[name] += 1
            elif not pod["metadata"].get("deletionTimestamp"):
                pending.setdefault(name, []).append(pod)
    return {
        name: (found, minimum[name] - bound[name]) for name, found in pending.items() if minimum[name] > bound[name]
    }


def _places(pod: Json, cards: Iterable[Json], free_cpus: Decimal | int) -> int:
    """Return how many pods like this one, which asks for one card, find room on a node at once."""
    (ask,) = asks_of(pod)
    by_cards = sum(_takes_many(card, ask) for card in cards)
    return min(by_cards, int(free_cpus // cpus_of(pod))) if cpus_of(pod) else by_cards


def _takes_many(card: Json, ask: Ask) -> int:
    """Return for how many pods a card has room at once."""
    if not _takes(card, ask):
        return 0
    if ask.exclusive:
        return 1
    capacity, used, number = card["spec"]["capacity"], totals(holders_of(card)), 0
    while ask.fits(capacity, used, is_idle=False, is_shut=False):
        number += 1
        used["memoryMiB"] += ask.memory_on(capacity)
        used["cores"] += ask.cores_on(capacity)
        used["number"] += 1
    return number


def _living_on(pods: Mapping[str, Json], node_name: str) -> Iterator[Json]:
    return (pod for pod in pods.values() if pod["spec"].get("nodeName") == node_name and not has_ended(pod))


def _room(cards: Mapping[str, Json], nodes: Mapping[str, Json]) -> dict[str, list[Json]]:
    """Return node name -> cards that take pods."""
    room: dict[str, list[Json]] = {}
    for card in cards.values():
        name = card["spec"]["nodeName"]
        if (card.get("status") or {}).get("phase") == "Ready" and name in nodes:
            room.setdefault(name, []).append(card)
    return room


def _fitting(asks: Sequence[Ask], cards: Iterable[Json]) -> list[str]:
    """Return which cards of a node take a pod with one container, none if they are too few."""
    if len(asks) != 1:
        return []
    found = [card["spec"]["uuid"] for card in cards if _takes(card, asks[0])]
    return found if len(found) >= asks[0].cards else []


def _takes(card: Json, ask: Ask) -> bool:
    holders = holders_of(card)
    is_shut = any(holder["exclusive"] for holder in holders)
    return ask.fits(card["spec"]["capacity"], totals(holders), is_idle=not holders, is_shut=is_shut)


def _name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
