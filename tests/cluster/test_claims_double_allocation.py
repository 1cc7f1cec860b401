"""No card twice, whichever words pods use: resources or ResourceClaims, and whoever comes first.

The report in which Volcano gave cards twice (test_double_allocation.py) with claims as a further word; and the same
for two claims that each ask for a whole card, which an API server accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

from cluster.claims import TEMPLATES, check_claims, claiming, opaque, request, share, template, wait_all_refused
from cluster.cluster import CORES, COUNT, MEMORY, Cluster, pod, uuids
from effort import times

Json = dict[str, Any]

CARD_MIB = 40960
EVERY = times(2, 1)
"""Of the pairs for one card, `make test` tries every second one."""


@dataclass(frozen=True)
class Word:
    """A way to ask for cards: `make` returns a pod with this name that asks for so many, on the node."""

    name: str
    make: Callable[[str, int, str], Json]
    by_claim: bool
    memory_mib: int = CARD_MIB
    alone: bool = True
    """Nobody else is to be on its cards."""

    def __str__(self) -> str:
        return self.name


def at(node: str) -> Json:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def by_limits(name: str, limits: Json | None = None, memory_mib: int = CARD_MIB, alone: bool = True) -> Word:
    def make(pod_name: str, cards: int, node: str) -> Json:
        return pod(pod_name, {COUNT: cards, **(limits or {})}, **at(node))

    return Word(name, make, False, memory_mib, alone)


def by_claim(name: str, memory_mib: int = CARD_MIB, alone: bool = True) -> Word:
    """Ask by the template `<name>-<cards>`."""

    def make(pod_name: str, cards: int, node: str) -> Json:
        return claiming(pod_name, [f"{name}-{cards}"], **at(node))

    return Word(name, make, True, memory_mib, alone)


WHOLE = [
    by_limits("by-number"),
    by_limits("by-memory", {MEMORY: CARD_MIB}),
    by_claim("claimed"),
    by_claim("claimed-memory", alone=False),
]
SHARED = [
    by_limits("limited-share", {MEMORY: 10240}, 10240, alone=False),
    by_limits("limited-cores", {MEMORY: 10240, CORES: 100}, 10240),
    by_claim("claimed-share", 10240, alone=False),
    by_claim("claimed-cores", 10240),
    by_claim("claimed-alone", 10240),
]
REQUESTS: dict[str, Json] = {
    "claimed": request(),
    "claimed-memory": share("40Gi"),
    "claimed-share": share("10Gi"),
    "claimed-cores": share("10Gi", 100),
    "claimed-alone": share("10Gi"),
}


def create_templates(cluster: Cluster) -> None:
    for name, asked in REQUESTS.items():
        for cards in (1, 2, 4):
            devices = {"config": [opaque(exclusive=True)]} if name == "claimed-alone" else {}
            each = {**asked, "exactly": {**asked["exactly"], "count": cards}}
            cluster.request("POST", TEMPLATES, template(f"{name}-{cards}", each, **devices))


def test_two_two_and_four_cards_are_eight_different_ones_and_a_ninth_waits_in_any_mixture(
    claims_cluster: Cluster,
) -> None:
    """Every ordered pair of words has a node of its own; the pods of all nodes come in the same wave."""
    cluster = claims_cluster
    pairs = [pair for pair in product(WHOLE, WHOLE) if pair[0].by_claim or pair[1].by_claim]
    create_templates(cluster)
    nodes = cluster.add_nodes(len(pairs))
    given: list[list[str]] = [[] for _ in pairs]
    for wave, cards in enumerate((2, 2, 4)):
        names = [f"wave-{wave}-{number}" for number in range(len(pairs))]
        for name, pair, node in zip(names, pairs, nodes, strict=True):
            cluster.create(pair[wave % 2].make(name, cards, node.name))
        for found, mine, pair in zip(cluster.wait_bound(*names), given, pairs, strict=True):
            assert len(uuids(found)) == cards, pair
            mine += uuids(found)
    for mine, pair in zip(given, pairs, strict=True):
        assert len(set(mine)) == 8, f"{pair[0]} and {pair[1]} have a card twice"
    ninths = [f"ninth-{number}" for number in range(len(pairs))]
    for name, pair, node in zip(ninths, pairs, nodes, strict=True):
        cluster.create(pair[1].make(name, 1, node.name))
    wait_all_refused(cluster, *ninths)
    cluster.check_consistent()
    check_claims(cluster)


def test_a_card_is_shared_by_any_two_words_if_both_fit_and_else_the_second_waits_for_the_first(
    claims_cluster: Cluster,
) -> None:
    """Every ordered pair has a node with one card."""
    cluster = claims_cluster
    words = WHOLE + SHARED
    pairs = [pair for pair in product(words, words) if pair[0].by_claim or pair[1].by_claim][::EVERY]
    create_templates(cluster)
    nodes = cluster.add_nodes(len(pairs), gpus=1)
    firsts, seconds = ([f"{which}-{number}" for number in range(len(pairs))] for which in ("first", "second"))
    for position, names in enumerate((firsts, seconds)):
        for name, pair, node in zip(names, pairs, nodes, strict=True):
            cluster.create(pair[position].make(name, 1, node.name))
        if names is firsts:
            cluster.wait_bound(*firsts)
    both_fit = [not (a.alone or b.alone) and a.memory_mib + b.memory_mib <= CARD_MIB for a, b in pairs]
    cluster.wait_bound(*(name for name, fits in zip(seconds, both_fit, strict=True) if fits))
    late = [name for name, fits in zip(seconds, both_fit, strict=True) if not fits]
    assert len(late) < len(seconds)
    wait_all_refused(cluster, *late)
    cluster.check_consistent()
    check_claims(cluster)
    for name, fits in zip(firsts, both_fit, strict=True):
        if not fits:
            cluster.finish(name)
    cluster.wait_bound(*late)
    cluster.settle()
    for name, node in zip(seconds, nodes, strict=True):
        assert uuids(cluster.pod(name)) == [node.cards[0].uuid]
