"""What must hold once all faults have stopped and everything has had time to be put right."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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
)
from chaos.checker import Finding
from chaos.claim_rule import unsettled_claims
from chaos.claims import SHAPES, claim_asks_of, claim_names, devices_of, has_claims, shape_of, shares_claims
from chaos.gang_rule import GangName, gang_of
from chaos.hostile_user import is_hostile
from chaos.outcome import Outcome
from chaos.quotas import Left
from chaos.room import amounts_on, fitting, living_on, places, room_of
from chaos.workload_rule import unsettled_workloads

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


@dataclass(frozen=True)
class Others:
    """What is there beside cards, pods and nodes: each by namespace/name."""

    claims: Mapping[str, Json] = field(default_factory=dict)
    quotas: Mapping[str, Json] = field(default_factory=dict)
    workloads: Mapping[str, Json] = field(default_factory=dict)


NOTHING_ELSE = Others()


def unsettled(
    cards: Mapping[str, Json],
    pods: Mapping[str, Json],
    nodes: Mapping[str, Json],
    now: str,
    others: Others = NOTHING_ELSE,
) -> list[Finding]:
    """Return what is not in order: by card UUID, pod UID and node name, as read at one moment of a quiet cluster.

    The time is written as the deadlines are.
    """
    left = Left(others.quotas, cards)
    return [
        *_holders(cards, pods, now),
        *_promises(cards, pods),
        *_cards(cards, nodes),
        *_waiting(cards, pods, nodes, left, others.claims),
        *(Finding(rule, text, pods=uids) for rule, text, uids in unsettled_claims(others.claims, cards, pods)),
        *(Finding(*found) for found in unsettled_workloads(others.workloads, cards, pods, nodes, left)),
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
    if uuid not in told_cards(pod) and not shares_claims(pod):  # by a shared claim, it has what another one has left
        return "the pod was not told of it"
    return "" if holder["state"] == "allocated" else "the pod is bound and alive"


def _is_kept(card: Json, holder: Json, now: str) -> bool:
    return bool(holder["state"] == "reserved" and card["status"]["phase"] == "Unavailable" and now < holder["deadline"])


def _promises(cards: Mapping[str, Json], pods: Mapping[str, Json]) -> Iterator[Finding]:
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


def _waiting(
    cards: Mapping[str, Json],
    pods: Mapping[str, Json],
    nodes: Mapping[str, Json],
    left: Left,
    claims: Mapping[str, Json],
) -> Iterator[Finding]:
    """No pod waits that has room, and may have it by its namespace's quota.

    Exact for pods with one container, or one claim that nobody has yet; others are left to the operator. So are all
    hostile pods: nobody promises to bind them.
    """
    room = room_of(cards, nodes)
    free = {name: CPUS_OF_NODE - sum(cpus_of(pod) for pod in living_on(pods, name)) for name in nodes}
    short = _short_gangs(pods)
    for name, (pending, missing) in short.items():
        there = sum(places(pending[0], room[node], free[node]) for node in room)
        (ask,) = asks_of(pending[0])
        wanted = {each: missing * most for each, most in amounts_on(ask, cards.values()).items()}
        if len(pending) >= missing and there >= missing and left.allows(name.namespace, wanted):
            uids = tuple(pod["metadata"]["uid"] for pod in pending)
            text = f"gang {name} lacks {missing} of its pods, {len(pending)} wait, and there is room for {there}"
            yield Finding(GANG_WAITS, text, pods=uids)
    for uid, pod in pods.items():
        if is_bound(pod) or pod["metadata"].get("deletionTimestamp") or is_hostile(pod):
            continue
        if (gang := gang_of(pod)) and gang[0] in short:
            continue
        asks = _asks_by_claims(pod, claims) if has_claims(pod) else asks_of(pod)
        if not asks and not has_claims(pod) and any(each >= cpus_of(pod) for each in free.values()):
            yield Finding("a pod waits that has room", f"{_name(pod)} waits, and asks for no card", pods=(uid,))
        found = [card for name in room if free[name] >= cpus_of(pod) for card in fitting(asks, room[name])]
        if found and left.allows(pod["metadata"]["namespace"], amounts_on(asks[0], found)):
            uuids = tuple(card["spec"]["uuid"] for card in found)
            text = f"{_name(pod)} waits, and there is room on {', '.join(uuids)}"
            yield Finding("a pod waits that has room", text, pods=(uid,), cards=uuids)


def _asks_by_claims(pod: Json, claims: Mapping[str, Json]) -> list[Ask]:
    """Return what a pod asks for by its only claim, which is there and nobody's yet; nothing where it is otherwise."""
    names = list(claim_names(pod))
    claim = claims.get(f"{pod['metadata']['namespace']}/{names[0][1]}")
    if len(names) > 1 or claim is None or devices_of(claim) or claim["metadata"].get("deletionTimestamp"):
        return []
    (ask,) = claim_asks_of(pod).values() if not names[0][2] else [SHAPES[shape_of(names[0][1])][1]]
    return [ask]


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


def _name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
