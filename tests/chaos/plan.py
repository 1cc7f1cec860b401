"""From a seed to a plan: the world, the pods, what goes wrong, and when. The same seed always gives the same plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from chaos.claims import SHAPES as CLAIMS
from chaos.steps import (
    AddNode,
    ChangeCard,
    ClaimCard,
    Create,
    CreateClaim,
    CreateHostile,
    CreateReplicas,
    CreateReservation,
    CreateWorkload,
    Delete,
    DeleteClaim,
    DeleteHostile,
    DeleteNamespace,
    DeleteNode,
    DeleteReservation,
    DeleteWorkload,
    EndWatch,
    Freeze,
    HoldWatch,
    Kill,
    MoveAway,
    PlannedPod,
    PlannedWorkload,
    RestartApiServer,
    RestartEtcd,
    SetAgent,
    SetBudget,
    SetQuota,
    StaleEdit,
    StartRival,
    Step,
)
from chaos.weather import api_rates, extender_rates
from faults.kinds import Rates
from hostile.catalogue import CATALOGUE

CHAOS_S = 30.0

MODELS_MIB = {"T4": 15360, "A10": 23028, "A100-40GB": 40960, "H100-80GB": 81559}
SLOTS = (1, 2, 4, 10, 10, 10)
PRIORITIES = {"chaos-low": -10, "chaos-normal": 0, "chaos-high": 1000}

SHAPES = {
    "small": 30,
    "large": 15,
    "percent": 8,
    "cores": 8,
    "alone": 4,
    "two-cards": 6,
    "four-cards": 3,
    "whole": 8,
    "two-whole": 2,
    "two-containers": 6,
    "init": 5,
    "sidecar": 3,
    "too-large": 1,
    "no-card": 1,
}
"""Shape of a pod (see pods.py) -> how often, compared with the others."""

GANG_SHAPES = ("small", "large", "percent", "cores", "alone", "whole")
"""Of the members of gangs: with one card each, it can be worked out whether a whole gang has room."""

GROUPS = 3
"""Of pods, in a namespace, that a budget can protect."""

CROWDS = ((0,), (0,), (0, 8, 0, 40), (0, 2, 24, 0, 60))
"""CPUs that pods ask for in turn. Where nodes have too few, kube-scheduler evicts pods, and asks about the cards."""

HOSTILE_KINDS = 3
"""How many kinds of hostile objects are there at the same time, at most."""

WATCHED = ("pods", "nodes", "gpuallocations", "resourceclaims", "resourcequotas", "workloads")

QUOTA_KEYS = {
    "limits.nvidia.com/gpumem": (8_000, 200_000),
    "limits.nvidia.com/gpucores": (40, 600),
    "limits.nvidia.com/gpu": (1, 16),
}
"""Key of a ResourceQuota -> the least and the most that one says."""

SHARED_CLAIMS = 3
"""How many claims that pods can share a namespace has at a time, at most."""


@dataclass(frozen=True)
class PlannedCard:
    """A card as its node reports it at first."""

    uuid: str
    memory_mib: int
    number: int


@dataclass(frozen=True)
class PlannedNode:
    """A node as it is at first."""

    name: str
    model: str
    cards: tuple[PlannedCard, ...]


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    seconds: float
    nodes: tuple[PlannedNode, ...]
    namespaces: tuple[str, ...]
    steps: tuple[Step, ...]
    api_rates: Rates
    extender_rates: Rates
    has_standby: bool
    """Whether a second operator and kube-scheduler stand by, and a Lease says who works."""
    despite_budgets: bool
    """Whether the operator evicts pods that a budget protects if nothing else helps."""
    kopf_pods: bool
    """Whether Kopf watches pods, and not the plain watch."""


def plan(seed: int, seconds: float = CHAOS_S) -> Plan:
    """Return the plan of a seed."""
    nodes = _nodes(seed)
    namespaces = tuple(f"chaos-{seed}-{letter}" for letter in "ab")
    has_standby = _dice(seed, "standby").random() < 0.15
    severity = _dice(seed, "severity").choice((0.0, 0.01, 0.03, 0.08))
    steps = [
        *_pods(_dice(seed, "pods"), seconds, namespaces, _dice(seed, "CPUs").choice(CROWDS)),
        *_gangs(_dice(seed, "gangs"), seconds, namespaces, _dice(seed, "CPUs").choice(CROWDS)),
        *_claims(_dice(seed, "claims"), seconds, namespaces),
        *_quotas(_dice(seed, "quotas"), seconds, namespaces),
        *_workloads(_dice(seed, "workloads"), seconds, namespaces),
        *_reservations(_dice(seed, "reservations"), seconds, namespaces),
        *_moves(_dice(seed, "moves"), seconds, namespaces, nodes),
        *_cards_fail(_dice(seed, "cards fail"), seconds, nodes),
        *_budgets(_dice(seed, "budgets"), seconds, namespaces),
        *_nodes_go(_dice(seed, "nodes go"), seconds, nodes),
        *_cards_change(_dice(seed, "cards change"), seconds, nodes),
        *_programs_die(_dice(seed, "programs die"), seconds, has_standby),
        *_watches_break(_dice(seed, "watches break"), seconds),
        *_administrators(_dice(seed, "administrators"), seconds, nodes),
        *_namespace_goes(_dice(seed, "namespace goes"), seconds, namespaces),
        *_hostile_user(_dice(seed, "hostile user"), seconds, nodes),
    ]
    return Plan(
        seed=seed,
        seconds=seconds,
        nodes=nodes,
        namespaces=namespaces,
        steps=tuple(sorted((step for step in steps if step.at_s < seconds), key=lambda step: step.at_s)),
        api_rates=api_rates(_dice(seed, "API weather"), severity),
        extender_rates=extender_rates(_dice(seed, "extender weather"), severity),
        has_standby=has_standby,
        despite_budgets=_dice(seed, "despite budgets").random() < 0.3,
        kopf_pods=_dice(seed, "who watches pods").random() < 0.5,
    )


def _dice(seed: int, topic: str) -> Random:
    """Return dice for one topic, so that a change of one leaves the others as they were."""
    return Random(f"{seed} {topic}")  # noqa: S311 - no secret


def _nodes(seed: int) -> tuple[PlannedNode, ...]:
    dice = _dice(seed, "world")
    nodes = []
    for position in range(dice.randint(3, 8)):
        name, model = f"chaos-{seed}-{position}", dice.choice(list(MODELS_MIB))
        slots = dice.choice(SLOTS)
        cards = [
            PlannedCard(f"GPU-{seed}-{position}-{index}", MODELS_MIB[model], slots)
            for index in range(dice.choice((1, 2, 2, 4, 4, 8)))
        ]
        nodes.append(PlannedNode(name, model, tuple(cards)))
    return tuple(nodes)


# Pods.


def _pods(dice: Random, seconds: float, namespaces: tuple[str, ...], cpus: tuple[int, ...]) -> Iterator[Step]:
    for number, at_s in enumerate(_arrivals(dice, seconds)):
        namespace = dice.choices(("default", *namespaces), (6, 2, 2))[0]
        for step in _life(dice, at_s, seconds, namespace, f"pod-{number}"):
            if isinstance(step, Create):
                pod = replace(
                    step.pod, group=number % GROUPS, cpus=cpus[number % len(cpus)], leaves_failed_card=number % 3 == 0
                )
                yield replace(step, pod=pod)
            else:
                yield step


def _arrivals(dice: Random, seconds: float) -> list[float]:
    """Return when pods come: evenly, and some of them in bursts."""
    rate = dice.uniform(4, 9)
    times = [dice.uniform(0, seconds) for _ in range(int(rate * seconds))]
    for _ in range(dice.randint(0, 2)):
        burst_s = dice.uniform(0, seconds)
        times += [burst_s + dice.uniform(0, 0.3) for _ in range(dice.randint(10, 40))]
    return sorted(times)


def _life(dice: Random, at_s: float, seconds: float, namespace: str, name: str) -> Iterator[Step]:
    """Yield what happens to one name: a pod, its end, and sometimes another pod of that name."""
    while at_s < seconds:
        fate = dice.choices(("stays", "ends", "is deleted", "is killed"), (5, 45, 25, 25))[0]
        yield Create(at_s, _pod(dice, namespace, name, run_s=dice.uniform(0.3, 8) if fate == "ends" else None))
        if fate in ("stays", "ends"):
            return
        soon = dice.random() < 0.3  # while it is bound, or just after
        at_s += dice.uniform(0, 0.6) if soon else dice.uniform(1, 10)
        yield Delete(at_s, namespace, name, by_force=fate == "is killed")
        if dice.random() < 0.7:
            return
        at_s += dice.choice((0.0, 0.05, 0.5))


def _pod(dice: Random, namespace: str, name: str, run_s: float | None) -> PlannedPod:
    return PlannedPod(
        namespace=namespace,
        name=name,
        shape=dice.choices(list(SHAPES), list(SHAPES.values()))[0],
        priority=dice.choices(list(PRIORITIES), (1, 4, 1))[0],
        start_after_s=dice.choice((0.0, 0.05, 0.3, 1.0)),
        end_after_s=dice.choice((0.0, 0.1, 1.0)),
        run_s=run_s,
    )


def _gangs(dice: Random, seconds: float, namespaces: tuple[str, ...], cpus: tuple[int, ...]) -> Iterator[Step]:
    """Yield gangs: members that come one by one, die and are replaced, and the ends of whole gangs.

    Some need fewer than they have, some more: these never start. Names are free, so no two gangs have the same.
    """
    for number in range(dice.choice((0, 2, 4, 8, 12))):
        namespace, name = dice.choices(("default", *namespaces), (6, 2, 2))[0], f"gang-{number}-{dice.randrange(10**6)}"
        count = dice.choice((2, 3, 3, 4, 4, 6, 8))
        minimum = max(1, count + dice.choices((0, -1, -2, 1), (70, 10, 10, 10))[0])
        like = replace(
            _pod(dice, namespace, name, run_s=dice.uniform(2, 10) if dice.random() < 0.3 else None),
            shape=dice.choice(GANG_SHAPES),
            group=number % GROUPS,
            cpus=cpus[number % len(cpus)],
            gang=name,
            minimum=minimum,
        )
        yield from _life_of_gang(dice, seconds, [replace(like, name=f"{name}-{each}") for each in range(count)])


def _life_of_gang(dice: Random, seconds: float, members: list[PlannedPod]) -> Iterator[Step]:
    at_s = dice.uniform(0, seconds)
    while at_s < seconds:
        spread_s = dice.choice((0.0, 0.3, 5.0))
        for member in members:
            since_s = at_s + dice.uniform(0, spread_s)
            yield Create(since_s, member)
            if dice.random() < 0.15:
                gone_s = since_s + dice.choice((dice.uniform(0, 0.6), dice.uniform(1, 10)))
                yield Delete(gone_s, member.namespace, member.name, by_force=dice.random() < 0.5)
                if dice.random() < 0.7:
                    yield Create(gone_s + dice.choice((0.0, 0.05, 0.5)), member)
        if dice.random() < 0.5:
            return
        at_s += spread_s + dice.uniform(0, 10)
        by_force = dice.random() < 0.5
        for member in members:
            yield Delete(at_s, member.namespace, member.name, by_force)
        if dice.random() < 0.5:
            return
        at_s += dice.choice((0.05, 1.0))
        if dice.random() < 0.5:  # the same pods again, as another gang
            members = [replace(member, gang=f"{member.gang}-again") for member in members]


def _claims(dice: Random, seconds: float, namespaces: tuple[str, ...]) -> Iterator[Step]:
    """Yield claims that pods share, some deleted and created again; and pods with these, or with some of their own."""
    for namespace in ("default", *namespaces):
        names = [f"shared-{number}-{dice.choice(list(CLAIMS))}" for number in range(dice.randint(0, SHARED_CLAIMS))]
        for name in names:
            at_s = dice.uniform(0, seconds / 2)
            while at_s < seconds:
                yield CreateClaim(at_s, namespace, name)
                if dice.random() < 0.4:
                    break
                at_s += dice.choice((dice.uniform(0, 0.6), dice.uniform(1, 12)))
                yield DeleteClaim(at_s, namespace, name)
                if dice.random() < 0.3:
                    break
                at_s += dice.choice((0.0, 0.05, 1.0))
        for number in range(dice.choice((0, 4, 8, 16))):
            for step in _life(dice, dice.uniform(0, seconds), seconds, namespace, f"claims-{number}"):
                if isinstance(step, Create):
                    shared = tuple(dice.sample(names, min(len(names), dice.choice((0, 1, 1, 2)))))
                    own = tuple(dice.choice(list(CLAIMS)) for _ in range(dice.choice((0, 1, 2)) if shared else 1))
                    yield replace(step, pod=replace(step.pod, shape="claims", templates=own, claims=shared))
                else:
                    yield step


def _quotas(dice: Random, seconds: float, namespaces: tuple[str, ...]) -> Iterator[Step]:
    """Yield quotas that come, become less or more, and go."""
    for namespace in ("default", *namespaces):
        if dice.random() < 0.5:
            continue
        at_s = dice.choice((0.0, 0.0, dice.uniform(0, seconds)))
        while at_s < seconds:
            keys = dice.sample(list(QUOTA_KEYS), dice.choice((1, 1, 2, 3)))
            yield SetQuota(at_s, namespace, tuple((key, dice.randint(*QUOTA_KEYS[key])) for key in keys))
            if dice.random() < 0.5:
                break
            at_s += dice.uniform(0.5, 15)
            if dice.random() < 0.3:
                yield SetQuota(at_s, namespace)
                at_s += dice.uniform(0.1, 5)


def _workloads(dice: Random, seconds: float, namespaces: tuple[str, ...]) -> Iterator[Step]:
    """Yield workloads of Kueue: most of them end, and some come again under the same name."""
    for number in range(dice.choice((0, 0, 3, 6))):
        namespace, at_s = dice.choices(("default", *namespaces), (6, 2, 2))[0], dice.uniform(0, seconds)
        while at_s < seconds:
            shape, count = dice.choice(GANG_SHAPES), dice.choice((1, 1, 2, 3, 5))
            yield CreateWorkload(at_s, PlannedWorkload(namespace, f"work-{number}", shape, count))
            if dice.random() < 0.3:
                break
            at_s += dice.choice((dice.uniform(0, 1), dice.uniform(1, 12)))
            yield DeleteWorkload(at_s, namespace, f"work-{number}")
            if dice.random() < 0.5:
                break
            at_s += dice.choice((0.0, 0.5))


def _reservations(dice: Random, seconds: float, namespaces: tuple[str, ...]) -> Iterator[Step]:
    """Yield reservations for pods of a group: most of them end, and some come again under the same name."""
    for number in range(dice.choice((0, 0, 2, 4, 8))):
        namespace, at_s = dice.choices(("default", *namespaces), (6, 2, 2))[0], dice.uniform(0, seconds)
        while at_s < seconds:
            yield CreateReservation(
                at_s,
                namespace,
                f"kept-{number}",
                dice.choice(list(SHAPES)),
                dice.randrange(GROUPS),
                count=dice.choice((1, 1, 2, 4)),
                once=dice.random() < 0.6,
                lasts_s=dice.choice((dice.uniform(0.5, 5), 3_600.0)),
            )
            if dice.random() < 0.3:
                break
            at_s += dice.choice((dice.uniform(0, 1), dice.uniform(1, 12)))
            yield DeleteReservation(at_s, namespace, f"kept-{number}")
            if dice.random() < 0.5:
                break
            at_s += dice.choice((0.0, 0.5))


def _moves(dice: Random, seconds: float, namespaces: tuple[str, ...], nodes: tuple[PlannedNode, ...]) -> Iterator[Step]:
    """Yield ReplicaSets, and nodes that are emptied for maintenance while everything else goes on."""
    if dice.random() < 0.5:
        return
    for number in range(dice.choice((1, 2, 4))):
        namespace = dice.choices(("default", *namespaces), (6, 2, 2))[0]
        shape, count, group = dice.choice(GANG_SHAPES), dice.choice((1, 3, 6)), dice.randrange(GROUPS)
        yield CreateReplicas(dice.uniform(0, seconds / 2), namespace, f"set-{number}", shape, count, group)
    for _ in range(dice.choice((1, 1, 2))):
        yield MoveAway(dice.uniform(1, seconds), dice.choice(nodes).name, dice.choice((1.0, 5.0, 15.0)))


def _budgets(dice: Random, seconds: float, namespaces: tuple[str, ...]) -> Iterator[Step]:
    """Yield budgets that come and, most of them, go: some forbid every eviction, some allow a few."""
    for _ in range(dice.choice((0, 0, 2, 4))):
        namespace, group = dice.choices(("default", *namespaces), (6, 2, 2))[0], dice.randrange(GROUPS)
        at_s = dice.uniform(0, seconds)
        yield SetBudget(at_s, namespace, group, dice.choice((1, 3, 1000)))
        if dice.random() < 0.7:
            yield SetBudget(at_s + dice.uniform(0.5, 10), namespace, group, None)


# Nodes and cards.


def _cards_fail(dice: Random, seconds: float, nodes: tuple[PlannedNode, ...]) -> Iterator[Step]:
    """Yield faults by which pods have to leave: of single cards, and now and then of several nodes' at once."""
    for _ in range(dice.choice((0, 0, 1, 1, 2))):
        node, at_s = dice.choice(nodes), dice.uniform(0.5, seconds)
        index, fault_class = dice.randrange(len(node.cards)), dice.choice(("lost", "reset", "contained"))
        yield ChangeCard(at_s, node.name, index, "faultClass", fault_class)
        if dice.random() < 0.7:
            yield ChangeCard(min(seconds, at_s + dice.uniform(0.05, 12)), node.name, index, "faultClass", None)


def _nodes_go(dice: Random, seconds: float, nodes: tuple[PlannedNode, ...]) -> Iterator[Step]:
    for node in nodes:
        if dice.random() < 0.15:
            at_s = dice.uniform(1, seconds)
            collect = dice.choice((None, None, 0.5, 4.0))
            yield DeleteNode(at_s, node.name, collect)
            back_s = at_s + dice.choice((0.05, 1.0, 5.0))
            if dice.random() < 0.8 and back_s < seconds:
                yield AddNode(back_s, node.name)
        if dice.random() < 0.15:
            at_s = dice.uniform(1, seconds)
            yield SetAgent(at_s, node.name, is_there=False)
            yield SetAgent(min(seconds, at_s + dice.uniform(0.1, 6)), node.name, is_there=True)


def _cards_change(dice: Random, seconds: float, nodes: tuple[PlannedNode, ...]) -> Iterator[Step]:
    for _ in range(dice.randint(0, 6)):
        node = dice.choice(nodes)
        index = dice.randrange(len(node.cards))
        card, at_s = node.cards[index], dice.uniform(0.5, seconds)
        field, value, normal = dice.choice(
            (
                ("present", False, True),
                ("healthy", False, True),
                ("memoryMiB", card.memory_mib // 2, card.memory_mib),
                ("memoryMiB", card.memory_mib * 2, card.memory_mib),
                ("number", 1, card.number),
            )
        )
        yield ChangeCard(at_s, node.name, index, field, value)
        if dice.random() < 0.1:
            age_s = dice.uniform(0.3, 2)
            yield StaleEdit(at_s - 0.2, "spec", card.uuid, age_s)
        if dice.random() < 0.7:
            yield ChangeCard(min(seconds, at_s + dice.uniform(0.05, 8)), node.name, index, field, normal)
    if dice.random() < 0.25:
        owner, other = dice.sample(nodes, 2)
        index, at_s = dice.randrange(len(owner.cards)), dice.uniform(0.5, seconds)
        yield ClaimCard(at_s, other.name, owner.name, index, is_claimed=True)
        if dice.random() < 0.5:  # the card moves: its owner gives it up, the other one keeps it
            gone_s = min(seconds, at_s + dice.uniform(0.1, 5))
            yield ChangeCard(gone_s, owner.name, index, "present", False)
        else:
            yield ClaimCard(min(seconds, at_s + dice.uniform(0.1, 5)), other.name, owner.name, index, is_claimed=False)


# Programs and what stands between them.


def _programs_die(dice: Random, seconds: float, has_standby: bool) -> Iterator[Step]:
    for _ in range(dice.choice((0, 1, 1, 2, 3, 5))):
        pair = dice.choice((0, 1)) if has_standby else 0
        yield Kill(dice.uniform(0.5, seconds), "operator", dice.choice((0.0, 0.0, 1.0, 3.0)), pair)
    if dice.random() < 0.3:
        yield Kill(dice.uniform(0.5, seconds), "scheduler", dice.choice((0.0, 2.0)))
    if dice.random() < 0.3:
        yield Freeze(dice.uniform(0.5, seconds), "operator", dice.uniform(0.5, 6))
    if dice.random() < 0.15:
        yield Freeze(dice.uniform(0.5, seconds), "scheduler", dice.uniform(0.5, 6))
    if dice.random() < 0.12:
        yield RestartApiServer(dice.uniform(2, seconds - 5), dice.choice((0.0, 2.0)))
    if dice.random() < 0.12:
        yield RestartEtcd(dice.uniform(2, seconds - 5), dice.choice((0.0, 2.0)))
    if not has_standby and dice.random() < 0.25:
        yield StartRival(dice.uniform(0, seconds / 2), dice.uniform(5, seconds))


def _watches_break(dice: Random, seconds: float) -> Iterator[Step]:
    for _ in range(dice.choice((0, 0, 1, 2, 4))):
        resource, at_s = dice.choice(WATCHED), dice.uniform(0.5, seconds)
        if dice.random() < 0.5:
            yield HoldWatch(at_s, resource, dice.uniform(0.3, 5))
        else:
            yield EndWatch(at_s, resource, dice.choice((410, 500, None)))


def _administrators(dice: Random, seconds: float, nodes: tuple[PlannedNode, ...]) -> Iterator[Step]:
    for _ in range(dice.choice((0, 0, 2, 4))):
        card = dice.choice(dice.choice(nodes).cards)
        at_s, age_s = dice.uniform(1, seconds), dice.uniform(0.05, 2)
        yield StaleEdit(at_s, "version" if dice.random() < 0.5 else "totals", card.uuid, age_s)


def _namespace_goes(dice: Random, seconds: float, namespaces: tuple[str, ...]) -> Iterator[Step]:
    if dice.random() < 0.2:
        yield DeleteNamespace(dice.uniform(seconds / 3, seconds), namespaces[-1])


def _hostile_user(dice: Random, seconds: float, nodes: tuple[PlannedNode, ...]) -> Iterator[Step]:
    """Yield one kind of hostile objects after the other. What is there last stays while all come to rest."""
    kinds = sorted(CATALOGUE)
    dice.shuffle(kinds)
    side_by_side = dice.randint(1, HOSTILE_KINDS)
    for first in range(side_by_side):
        at_s = dice.uniform(0, 3)
        for kind in kinds[first::side_by_side]:
            for _ in range(dice.choice((1, 1, 1, 2))):  # a second time under the same names
                yield CreateHostile(at_s, kind, dice.choice(nodes).name)
                at_s += dice.uniform(0.2, 6)
                yield DeleteHostile(at_s, kind, by_force=dice.random() < 0.5)
                at_s += dice.choice((0.0, 0.05, 1.0))
