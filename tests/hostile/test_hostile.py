"""Whatever a user of one namespace creates or does: others get their cards in time, and the operator lives on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from cluster.cluster import Cluster
from effort import seeds_for
from hostile.acts import ACTS
from hostile.catalogue import CATALOGUE, REGISTERS
from hostile.claim_kinds import CLAIM_KINDS
from hostile.others import ASKED_AT_ALL, ASKED_AT_THOUSANDS, TIMEOUT_S, TOLD_AFTER_S, Say, check_others, judged
from hostile.reservation_kinds import RESERVATION_KINDS

Json = dict[str, Any]

pytestmark = pytest.mark.cluster

WRITTEN = CATALOGUE | CLAIM_KINDS
KINDS = WRITTEN | RESERVATION_KINDS | REGISTERS
ALWAYS = {
    "a selector of shared lists, 28 deep",
    "1,500 connections that say nothing",
    "40 gangs of which kube-scheduler never asks for the last member",
    "20 reservations of 256, each for another amount",
}
"""Kinds that `make test` tries in each run: the worst of theirs."""

LONG_TO_CREATE = {
    "200 claims of 1.28 MB that nobody uses",
    "90 long ones on one node, and one that waits for its CPU",
    "long claims with pods",
}
"""Kinds for which the API server computes for a minute or more."""

CHOSEN = ALWAYS | set(random.Random(seeds_for("hostile", 1)[0]).sample(sorted(KINDS.keys() - LONG_TO_CREATE), 3))  # noqa: S311
"""With a few others: no secret."""


def tried(kinds: Iterable[str]) -> list[Any]:
    """Return the kinds, of which `make test` leaves out most."""
    return [kind if kind in CHOSEN else pytest.param(kind, marks=pytest.mark.long) for kind in kinds]


WITH_ALL_POLICIES = pytest.mark.parametrize(
    "attacked",
    [pytest.param(False, id="without policies"), pytest.param(True, id="with policies", marks=pytest.mark.long)],
    indirect=True,
)
AT_SIZES = pytest.mark.parametrize(
    ("attacked", "node_count"),
    [
        pytest.param(False, 1, id="one node"),
        pytest.param(False, 200, id="200 nodes", marks=pytest.mark.long),
        pytest.param(True, 3, id="with policies", marks=pytest.mark.long),
    ],
    indirect=["attacked"],
    scope="module",
)


@pytest.mark.promise("hostile objects")
@AT_SIZES
@pytest.mark.parametrize("kind", tried(KINDS))
def test_what_is_written(cluster: Cluster, kind: str, say: Say) -> None:
    check_others(cluster, KINDS[kind](), kind, say)


@AT_SIZES
@pytest.mark.parametrize("kind", tried(ACTS))
def test_what_is_done(cluster: Cluster, kind: str, say: Say) -> None:
    with judged(cluster, kind, say) as others, ACTS[kind](cluster):
        others.come("first")
        time.sleep(TOLD_AFTER_S + 0.5)
        others.come("last")


@pytest.mark.timeout(900)
@WITH_ALL_POLICIES
@pytest.mark.parametrize(
    "kinds", [pytest.param(WRITTEN, marks=pytest.mark.long), CATALOGUE | REGISTERS], ids=["written", "pods and nodes"]
)
def test_all_kinds_together(cluster: Cluster, kinds: dict[str, Callable[[], list[Json]]], say: Say) -> None:
    """Behind hundreds of pods, how long others wait is kube-scheduler's affair, and only told."""
    bodies = [body for make in kinds.values() for body in make()]
    check_others(cluster, bodies, f"{len(kinds)} kinds", say, ASKED_AT_ALL, TIMEOUT_S)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("attacked", "node_count"), [(False, 1_000)], indirect=["attacked"], ids=["1,000 nodes"], scope="module"
)
def test_all_kinds_together_at_a_thousand_nodes(cluster: Cluster, say: Say) -> None:
    bodies = [body for make in KINDS.values() for body in make()]
    check_others(cluster, bodies, "all kinds, at 1,000 nodes", say, ASKED_AT_THOUSANDS, TIMEOUT_S)
