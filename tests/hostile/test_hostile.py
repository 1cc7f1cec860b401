"""Whatever a user of one namespace creates: other namespaces' pods get their cards, and the operator lives on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from cluster.cluster import Cluster
from effort import seeds_for, times
from hostile.catalogue import CATALOGUE, REGISTERS
from hostile.others import ASKED_AT_ALL, ASKED_AT_THOUSANDS, Say, check_others

Json = dict[str, Any]

pytestmark = pytest.mark.cluster


KINDS = CATALOGUE | REGISTERS
TRIED = sorted(random.Random(seeds_for("hostile", 1)[0]).sample(sorted(KINDS), times(4, len(KINDS))))  # noqa: S311
"""Kinds that are tried one by one."""


@pytest.mark.parametrize("kind", TRIED)
def test_one_kind(cluster: Cluster, kind: str, say: Say) -> None:
    check_others(cluster, KINDS[kind](), kind, say)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "attacked",
    [pytest.param(False, id="without policies"), pytest.param(True, id="with policies", marks=pytest.mark.long)],
    indirect=True,
)
@pytest.mark.parametrize(
    "kinds", [pytest.param(CATALOGUE, marks=pytest.mark.long), KINDS], ids=["of a namespace", "and nodes"]
)
def test_all_kinds_together(cluster: Cluster, kinds: dict[str, Callable[[], list[Json]]], say: Say) -> None:
    bodies = [body for make in kinds.values() for body in make()]
    check_others(cluster, bodies, f"{len(kinds)} kinds", say, ASKED_AT_ALL)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("attacked", [False], indirect=True, ids=["without policies"])
def test_all_kinds_together_at_a_thousand_nodes(cluster: Cluster, say: Say) -> None:
    for _ in range(10):
        cluster.add_nodes(100, gpus=8)
    bodies = [body for make in KINDS.values() for body in make()]
    check_others(cluster, bodies, "all kinds, at 1,000 nodes", say, ASKED_AT_THOUSANDS)
