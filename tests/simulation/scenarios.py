"""The scenarios: small ones, in which everything is tried, and random ones."""

from collections.abc import Mapping
from random import Random

from simulation.acts import (
    AgentAway,
    BudgetAllows,
    ClockJumps,
    Crash,
    Create,
    CreateSeveral,
    Delete,
    Finish,
    ForceDelete,
    LeaseMoves,
    Touch,
)
from simulation.card_acts import CardComes, CardFails, CardRecovers, CardShrinks, CardVanishes
from simulation.restore import EtcdRestored
from simulation.scenario import Act, Scenario, Wish

HALF_MIB, MOST_MIB = 8_000, 10_000

A, B = Wish("a", MOST_MIB), Wish("b", MOST_MIB)

ONE_CARD = {"node-a": 1}
TWO_CARDS = {"node-a": 2}
TWO_NODES = {"node-a": 1, "node-b": 1}

SMALL: tuple[Scenario, ...] = (
    Scenario("one pod", ONE_CARD, (A,), (Crash(), Touch("a"))),
    Scenario("two pods for one card", ONE_CARD, (A, B), (Crash(), Delete("a"), ForceDelete("a"), Finish("a"))),
    Scenario("two pods on one card", ONE_CARD, (Wish("a", HALF_MIB), Wish("b", HALF_MIB)), (Crash(), Delete("a"))),
    Scenario(
        "equal pods come and go",
        ONE_CARD,
        (Wish("a", HALF_MIB), Wish("b", HALF_MIB), Wish("c", HALF_MIB)),
        (Delete("a"), ForceDelete("b"), Crash()),
    ),
    Scenario("a pod on two cards", TWO_CARDS, (Wish("a", cards=2), Wish("b")), (Crash(), Delete("a"), Delete("b"))),
    Scenario("two nodes", TWO_NODES, (A, B), (Crash(), AgentAway("node-a"), Delete("a"))),
    Scenario("a name returns", ONE_CARD, (A,), (ForceDelete("a"), Create(Wish("a", HALF_MIB)), Crash())),
    Scenario("two operators, one pod", TWO_CARDS, (A,), (Crash(1), Delete("a")), replicas=2),
    Scenario("two operators, two pods", ONE_CARD, (A, B), (Crash(2), Delete("a")), replicas=2),
    Scenario("two operators, two cards", TWO_CARDS, (Wish("a", cards=2), B), (Crash(1),), replicas=2),
    Scenario(
        "two operators, two big pods", TWO_CARDS, (Wish("a", cards=2), Wish("b", cards=2)), (Touch("a"),), replicas=2
    ),
    Scenario("two operators, two nodes", TWO_NODES, (A, B), (Crash(1), Delete("a")), replicas=2),
    Scenario("two operators and a quota", TWO_NODES, (A, B), (Crash(1), Delete("a")), replicas=2, quota_mib=MOST_MIB),
    Scenario(
        "the Lease moves, and there is a quota",
        TWO_NODES,
        (A, B),
        (LeaseMoves(2), Crash(1), Delete("a")),
        replicas=2,
        follows_lease=True,
        skews_s=(0.0, 60.0),
        quota_mib=MOST_MIB,
    ),
    Scenario(
        "the Lease moves",
        ONE_CARD,
        (A, B),
        (LeaseMoves(2), LeaseMoves(1), Crash(1), Delete("a")),
        replicas=2,
        follows_lease=True,
    ),
    Scenario(
        "the Lease moves to a machine whose clock is ahead",
        ONE_CARD,
        (A, B),
        (ForceDelete("a"), LeaseMoves(2), LeaseMoves(1), Crash(2)),
        replicas=2,
        follows_lease=True,
        skews_s=(0.0, 50.0),
    ),
)

LOW, HIGH = 1, 9

PREEMPTION = (
    Scenario(
        "a more important pod comes",
        ONE_CARD,
        (Wish("a", priority=LOW),),
        (Create(Wish("h", priority=HIGH)), Crash(), Delete("h")),
    ),
    Scenario(
        "a more important pod needs two cards",
        TWO_CARDS,
        (Wish("a", priority=LOW), Wish("b", HALF_MIB, priority=LOW)),
        (Create(Wish("h", cards=2, priority=HIGH)), Crash(), ForceDelete("a")),
    ),
    Scenario(
        "two more important pods come",
        TWO_CARDS,
        (Wish("a", cards=2, priority=LOW),),
        (Create(Wish("g", priority=HIGH)), Create(Wish("h", MOST_MIB, priority=HIGH + 1)), Crash()),
    ),
    Scenario(
        "a more important pod and two operators",
        ONE_CARD,
        (Wish("a", priority=LOW), Wish("c", priority=LOW)),
        (Create(Wish("h", priority=HIGH)), LeaseMoves(2), LeaseMoves(1), Crash(1)),
        replicas=2,
        follows_lease=True,
    ),
)

SMALL += PREEMPTION

AHEAD = (
    Scenario(
        "pods that queue are nominated",
        TWO_NODES,
        (Wish("a", 4_000),),
        (CreateSeveral(tuple(Wish(name, 4_000) for name in "bcdefgh")), Crash(), Delete("e")),
        then=(CreateSeveral(tuple(Wish(name, 4_000) for name in "ijk")),),
        nominate_ahead_nodes=1,
    ),
    Scenario(
        "pods that queue are nominated, and a more important one comes",
        TWO_NODES,
        (A, B, Wish("c", priority=LOW)),
        (Create(Wish("h", priority=HIGH)), Delete("b"), LeaseMoves(2), Crash(1)),
        replicas=2,
        follows_lease=True,
        nominate_ahead_nodes=1,
    ),
)

SMALL += AHEAD

A0, A1, B0 = "GPU-node-a-0", "GPU-node-a-1", "GPU-node-b-0"
HALVES = (Wish("a", HALF_MIB), Wish("b", HALF_MIB))

CARDS = (
    Scenario("a card fails", TWO_CARDS, (A, Wish("b")), (CardFails(A0), CardRecovers(A0), Delete("a"), Crash())),
    Scenario("a card shrinks", ONE_CARD, HALVES, (CardShrinks(A0, HALF_MIB), CardRecovers(A0), Delete("a"))),
    Scenario("a card vanishes", ONE_CARD, (A,), (CardVanishes(A0), CardComes(A0, "node-a"), Crash(), ForceDelete("a"))),
    Scenario(
        "a card moves",
        TWO_NODES,
        (A, Wish("b")),
        (CardComes(A0, "node-b"), Create(Wish("c", 4_000)), Delete("a"), CardComes(A0, "node-a")),
    ),
    Scenario(
        "a card fails under two operators",
        TWO_CARDS,
        (Wish("a", cards=2), B),
        (CardFails(A1), CardVanishes(A0), CardComes(A0, "node-a")),
        replicas=2,
    ),
    Scenario(
        "a card fails that others leave",
        TWO_CARDS,
        (Wish("a", cards=2, priority=LOW),),
        (CardFails(A0), CardRecovers(A0)),
        then=(Create(Wish("h", priority=HIGH)),),
    ),
)

RESTORES = (
    Scenario(
        "etcd is restored while a pod leaves", ONE_CARD, (A, B), (Delete("a"), EtcdRestored(2, jumps=True), Crash())
    ),
    Scenario(
        "etcd is restored",
        TWO_CARDS,
        (Wish("a", cards=2), B),
        (EtcdRestored(2), EtcdRestored(5, jumps=True), Delete("a"), Crash()),
    ),
    Scenario(
        "etcd is restored under two operators",
        TWO_NODES,
        (A, Wish("b", HALF_MIB)),
        (EtcdRestored(3), ForceDelete("a"), Create(Wish("c", MOST_MIB)), EtcdRestored(8, jumps=True)),
        replicas=2,
    ),
    Scenario(
        "etcd is restored, and the Lease has moved",
        ONE_CARD,
        HALVES,
        (EtcdRestored(4), LeaseMoves(2), EtcdRestored(1), Delete("b")),
        replicas=2,
        follows_lease=True,
    ),
    Scenario(
        "etcd is restored while others leave",
        ONE_CARD,
        (Wish("a", priority=LOW),),
        (EtcdRestored(3), EtcdRestored(6, jumps=True)),
        then=(Create(Wish("h", priority=HIGH)),),
    ),
)

HOUR_S = 3_600.0

CLOCKS = (
    Scenario(
        "a clock jumps while a share ends", ONE_CARD, (A, B), (ForceDelete("a"), ClockJumps(1, 2 * HOUR_S), Crash())
    ),
    Scenario(
        "a clock jumps while others leave",
        ONE_CARD,
        (Wish("a", priority=LOW),),
        (ClockJumps(1, 2 * HOUR_S), ClockJumps(1, -2 * HOUR_S), Delete("h")),
        then=(Create(Wish("h", priority=HIGH)),),
    ),
    Scenario(
        "clocks jump under two operators",
        TWO_CARDS,
        (Wish("a", cards=2, priority=LOW), Wish("b", HALF_MIB)),
        (ClockJumps(1, -HOUR_S), ClockJumps(2, HOUR_S), LeaseMoves(2)),
        then=(Create(Wish("h", priority=HIGH)),),
        replicas=2,
        follows_lease=True,
    ),
)

BUDGETS = (
    Scenario(
        "a budget protects who is to leave",
        TWO_CARDS,
        (Wish("a", priority=LOW), Wish("b", priority=LOW)),
        (BudgetAllows(1), BudgetAllows(9), Crash()),
        then=(Create(Wish("h", cards=2, priority=HIGH)),),
    ),
    Scenario(
        "kube-scheduler preempts",
        TWO_CARDS,
        (Wish("a", priority=LOW), Wish("b", HALF_MIB, priority=LOW)),
        (Crash(), Delete("h")),
        then=(Create(Wish("h", cards=2, priority=HIGH)),),
        preemption="native",
    ),
    Scenario(
        "kube-scheduler preempts, and there are two operators",
        ONE_CARD,
        (Wish("a", priority=LOW),),
        (LeaseMoves(2), Create(Wish("g", priority=HIGH + 1))),
        then=(Create(Wish("h", priority=HIGH)),),
        replicas=2,
        follows_lease=True,
        preemption="native",
    ),
)

LAGS = (
    Scenario(
        "lists come in pages",
        {"node-a": 1, "node-b": 2},
        HALVES,
        (Crash(), Delete("a"), Create(Wish("c", cards=2))),
        page=1,
    ),
    Scenario(
        "Kopf watches pods",
        {"node-a": 1, "node-b": 2},
        HALVES,
        (Crash(), Delete("a"), LeaseMoves(2), Create(Wish("c", cards=2))),
        replicas=2,
        follows_lease=True,
        kopf_pods=True,
    ),
    Scenario(
        "an API server is behind",
        TWO_NODES,
        (A, Wish("b")),
        (ForceDelete("b"), Finish("a"), CardFails(A0), Create(Wish("c", MOST_MIB))),
        behind=6,
    ),
)


def a_gang(names: str, gang: str = "g", minimum: int = 0, cards: int = 1, memory_mib: int = 0) -> tuple[Wish, ...]:
    """Return the members of a gang, all of which it needs if no minimum is given."""
    return tuple(Wish(name, memory_mib, cards, gang=gang, minimum=minimum or len(names)) for name in names)


GANGS = (
    Scenario("a gang", TWO_CARDS, a_gang("ab"), (Crash(), Delete("a"), Touch("b"))),
    Scenario("a gang and a pod", TWO_CARDS, (*a_gang("ab"), Wish("c")), (Delete("c"), Finish("c"), Crash())),
    Scenario(
        "two gangs that take turns", TWO_CARDS, (*a_gang("ab"), *a_gang("cd", "h")), (Delete("a"), Finish("b"), Crash())
    ),
    Scenario(
        "a gang that is larger than it has to be",
        {"node-a": 2, "node-b": 1},
        a_gang("abc", minimum=2),
        (Crash(), ForceDelete("a")),
    ),
    Scenario(
        "a gang whose last member comes late",
        TWO_NODES,
        a_gang("a", minimum=2),
        (Create(Wish("b", gang="g", minimum=2)), Create(Wish("c", HALF_MIB)), Crash(), Delete("a")),
    ),
    Scenario(
        "a gang whose first member sleeps when the last one comes",
        TWO_NODES,
        a_gang("a", minimum=2),
        (Crash(), Touch("a")),
        then=(Create(Wish("b", gang="g", minimum=2)),),
    ),
    Scenario(
        "a member of a gang is replaced",
        {"node-a": 3},
        a_gang("abc"),
        (ForceDelete("a"), Create(Wish("d", gang="g", minimum=3)), Create(Wish("e", HALF_MIB)), Crash()),
    ),
    Scenario(
        "a card of a gang fails", {"node-a": 2, "node-b": 1}, a_gang("ab"), (CardFails(A0), CardRecovers(A0), Crash())
    ),
    Scenario(
        "a gang on shared cards",
        TWO_NODES,
        a_gang("abc", memory_mib=HALF_MIB),
        (Delete("b"), AgentAway("node-a"), Crash()),
    ),
    Scenario(
        "a gang whose pods have several cards",
        {"node-a": 2, "node-b": 2},
        a_gang("ab", cards=2),
        (Crash(), Delete("a")),
    ),
    Scenario("a gang and two operators", TWO_CARDS, (*a_gang("ab"), Wish("c")), (Crash(1), Delete("c")), replicas=2),
    Scenario(
        "a gang, and the Lease moves",
        TWO_CARDS,
        (*a_gang("ab"), Wish("c")),
        (LeaseMoves(2), LeaseMoves(1), Crash(1), Delete("c")),
        replicas=2,
        follows_lease=True,
    ),
    Scenario(
        "etcd is restored under a gang",
        TWO_CARDS,
        a_gang("ab"),
        (EtcdRestored(2), EtcdRestored(6, jumps=True), Crash()),
    ),
)

FAULTS = CARDS + RESTORES + CLOCKS + BUDGETS + LAGS
"""Those in which more can go wrong than requests, watches and operators."""

BY_NAME = {scenario.name: scenario for scenario in SMALL + FAULTS + GANGS}

RANDOM = "random"


def named(name: str) -> Scenario:
    """Return a scenario: a small one, or `random N`. Raises KeyError."""
    kind, _, number = name.partition(" ")
    return random_scenario(int(number)) if kind == RANDOM and number.isdigit() else BY_NAME[name]


def random_scenario(seed: int) -> Scenario:
    """Return a larger scenario: up to three nodes and eight pods, with much that may happen."""
    random = Random(f"{RANDOM} {seed}")  # noqa: S311 - nothing here is secret
    nodes = {f"node-{letter}": random.randint(1, 3) for letter in "abc"[: random.randint(1, 3)]}
    wishes = tuple(_random_wish(random, name) for name in "abcdefgh"[: random.randint(2, 8)])
    replicas = random.choice((1, 1, 2))
    follows_lease = random.random() < 0.5
    acts = tuple(_random_act(random, wishes, nodes, replicas, follows_lease) for _ in range(random.randint(0, 8)))
    preemption = random.choice(("own", "own", "native"))
    name, lease = f"{RANDOM} {seed}", follows_lease and replicas > 1
    page, behind = random.choice((0, 0, 1, 2)), random.choice((0, 0, 3, 10))
    return Scenario(
        name,
        nodes,
        wishes,
        acts,
        replicas,
        lease,
        page=page,
        behind=behind,
        kopf_pods=bool(seed % 2),
        preemption=preemption,
    )


def _random_wish(random: Random, name: str) -> Wish:
    memory_mib = random.choice((0, 1_000, 4_000, HALF_MIB, MOST_MIB, 16_000))
    return Wish(name, memory_mib, random.choice((1, 1, 1, 2, 3)), random.choice((0, 0, 0, 100)))


def _random_act(
    random: Random, wishes: tuple[Wish, ...], nodes: Mapping[str, int], replicas: int, follows_lease: bool
) -> Act:
    name, slot, node_name = random.choice(wishes).name, random.randint(1, replicas), random.choice(list(nodes))
    kinds: list[Act] = [Delete(name), ForceDelete(name), Finish(name), Touch(name), Crash(slot), Crash(slot)]
    kinds += [Create(_random_wish(random, random.choice((name, "i", "j")))), AgentAway(node_name)]
    kinds += [_random_card_act(random, f"GPU-{node_name}-{random.randrange(nodes[node_name])}", list(nodes))] * 3
    kinds += [EtcdRestored(random.choice((1, 2, 4, 8, 16)), random.random() < 0.5)]
    kinds += [BudgetAllows(random.choice((0, 1, 9)))]
    kinds += [ClockJumps(slot, random.choice((-2 * HOUR_S, -60.0, 60.0, 2 * HOUR_S)))]
    if replicas > 1 and follows_lease:
        kinds += [LeaseMoves(slot)] * 3
    return random.choice(kinds)


def _random_card_act(random: Random, uuid: str, nodes: list[str]) -> Act:
    comes = CardComes(uuid, random.choice(nodes))
    shrinks = CardShrinks(uuid, random.choice((HALF_MIB, MOST_MIB)))
    return random.choice((CardFails(uuid), CardRecovers(uuid), shrinks, CardVanishes(uuid), comes, comes))
