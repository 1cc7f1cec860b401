"""A limit above the share is set where the administrator allows it and the isolation holds it, and nowhere else."""

from dataclasses import replace
from typing import Any

import pytest

from gpuledger.agent.isolation.choice import Bursts, GrantedCard, Isolation, with_bursts
from gpuledger.agent.isolation.hami_core import hami_core_edits
from gpuledger.formats.annotations import MEMORY_LIMIT_ANNOTATION

CARD = GrantedCard("GPU-0", 0, "nvidia", "", 4_000, 30, False, capacity_mib=40_000)


def pod(wish: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {MEMORY_LIMIT_ANNOTATION: wish} if wish else {}}}


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("allowed", list(Bursts))
def test_only_an_isolation_that_holds_it_has_a_limit_above_the_share(isolation: Isolation, allowed: Bursts) -> None:
    holds = {
        Bursts.NEVER: set[Isolation](),
        Bursts.GUARANTEED: {Isolation.DRIVER},
        Bursts.ANY: {Isolation.DRIVER, Isolation.HAMI_CORE},
    }
    (found,), why_not = with_bursts([CARD], pod("16000"), "main", isolation, allowed)
    counts = isolation in holds[allowed]
    assert found.most_mib == (16_000 if counts else 4_000)
    assert found.memory_mib == CARD.memory_mib
    assert bool(why_not) is not counts
    assert with_bursts([CARD], pod(""), "main", isolation, allowed) == ([CARD], "")


@pytest.mark.parametrize(
    ("wish", "container", "most_mib"),
    [
        ("", "main", 4_000),
        ("100", "main", 4_000),
        ("90000", "main", 40_000),
        ("main=5000", "main", 5_000),
        ("main=5000", "tools", 4_000),
        ("main=5000,6000", "tools", 6_000),
    ],
)
def test_it_is_between_the_share_and_the_card_whatever_is_wished(wish: str, container: str, most_mib: int) -> None:
    (found,), why_not = with_bursts([CARD], pod(wish), container, Isolation.DRIVER, Bursts.GUARANTEED)
    assert (found.most_mib, why_not) == (most_mib, "")


@pytest.mark.parametrize("allowed", list(Bursts))
def test_a_wish_that_can_not_be_read_is_said(allowed: Bursts) -> None:
    found, why_not = with_bursts([CARD], pod("much"), "main", Isolation.DRIVER, allowed)
    assert (found, "neither MiB" in why_not) == ([CARD], True)


def test_hami_core_gets_the_limit_and_not_the_share() -> None:
    edits = hami_core_edits([replace(CARD, burst_mib=9_000)], "/vgpu", "/own", "")
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=9000m" in edits["env"]
