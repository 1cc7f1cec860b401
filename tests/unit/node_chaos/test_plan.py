"""A seed decides everything that happens to a node."""

from itertools import pairwise
from typing import Any

from chaos.arithmetic import asks_of
from node_chaos.claims import claim_of, may_wait, objects, users
from node_chaos.plan import (
    CHAOS_S,
    CLAIM_SHAPES,
    DISKS,
    ISOLATIONS,
    LONGEST_OUTAGE_S,
    PROGRAMS,
    SHAPES,
    STOPPABLE,
    plan,
)
from node_chaos.pods import body_of
from node_chaos.steps import Create, End, FillDisk, HangDisk, PlannedPod, ProtectDisk, Stop

SEEDS = range(1, 80)
Json = dict[str, Any]


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_every_plan_is_in_order_and_no_outage_is_longer_than_the_shares_of_the_dead_stay() -> None:
    for made in map(plan, SEEDS):
        assert all(0 <= earlier.at_s <= later.at_s < CHAOS_S for earlier, later in pairwise(made.steps))
        for step in made.steps:
            lasts_s = {End: "down_s", Stop: "for_s", FillDisk: "for_s", ProtectDisk: "for_s", HangDisk: "hang_s"}.get(
                type(step)
            )
            assert lasts_s is None or getattr(step, lasts_s) <= LONGEST_OUTAGE_S


def test_the_plans_together_have_every_kind_of_step_of_program_of_disk_and_of_pod() -> None:
    steps = [step for seed in SEEDS for step in plan(seed).steps]
    assert {type(step).__name__ for step in steps} == {
        *("Create", "Delete", "HitContainers", "End", "Stop", "FillDisk", "HangDisk", "ProtectDisk"),
        *("DamageCheckpoint", "RemoveSocket", "RemoveGrants", "BreakCard", "LoseDriver"),
    }
    assert {step.program for step in steps if isinstance(step, End)} == set(PROGRAMS)
    assert {step.program for step in steps if isinstance(step, Stop)} == set(STOPPABLE)
    assert {step.disk for step in steps if isinstance(step, FillDisk)} == set(DISKS)
    assert {step.disk for step in steps if isinstance(step, HangDisk)} == set(DISKS)
    ways = {(made.delivery, made.isolation) for made in map(plan, SEEDS)}
    assert ways == {("directory", "none"), *(("cdi", isolation) for isolation in ISOLATIONS)}
    pods = [step.pod for step in steps if isinstance(step, Create)]
    assert {pod.shape for pod in pods} == SHAPES.keys() | CLAIM_SHAPES.keys()
    by_directory = [made for made in map(plan, SEEDS) if made.delivery == "directory"]
    without = {step.pod.shape for made in by_directory for step in made.steps if isinstance(step, Create)}
    assert not without & CLAIM_SHAPES.keys(), "without CDI, no claims are served"
    assert {pod.greedy for pod in pods} == {True, False}
    assert {pod.stubborn for pod in pods} == {pod.run_s is None for pod in pods} == {True, False}


def test_no_two_containers_of_a_run_ask_for_the_same_but_those_that_ask_for_a_whole_card() -> None:
    memory = [
        ask.memory_mib
        for number, shape in enumerate(sorted(SHAPES) * 90)
        for ask in asks_of(body_of(PlannedPod("a", shape, number)))
        if ask.memory_mib is not None
    ]
    assert len(set(memory)) == len(memory)


def test_no_two_claims_of_a_run_ask_for_the_same_but_those_that_pods_share() -> None:
    bodies = [body_of(PlannedPod("a", shape, number)) for number, shape in enumerate(sorted(CLAIM_SHAPES) * 90)]
    own = [use.memory_mib for body in bodies if (use := claim_of(with_uid(body))) and not use.joint]
    joint = {use.memory_mib for body in bodies if (use := claim_of(with_uid(body))) and use.joint}
    resources = {ask.memory_mib for body in bodies for ask in asks_of(body)}
    assert len(set(own)) == len(own)
    assert len(joint) == 3
    assert not joint & set(own)
    assert not resources & (joint | set(own))
    made = [each for body in bodies for _, each in objects(body)]
    assert {each["kind"] for each in made} == {"ResourceClaim", "ResourceClaimTemplate"}


def test_a_pod_waits_where_its_claim_can_not_be_kept_to_its_amount() -> None:
    waits = {
        (shape, isolation)
        for shape in CLAIM_SHAPES
        for isolation in ISOLATIONS
        if may_wait(with_uid(body_of(PlannedPod("a", shape, 1))), isolation)
    }
    several = {shape for shape in CLAIM_SHAPES if users(with_uid(body_of(PlannedPod("a", shape, 1)))) > 1}
    assert several == {"claim-of-two", "claim-of-three", "claim-beside"}
    assert waits == {
        *(("joins", isolation) for isolation in ("driver", "hami-core", "mps")),
        *((shape, isolation) for shape in several for isolation in ("hami-core", "mps")),
    }


def with_uid(body: Json) -> Json:
    return {**body, "metadata": {**body["metadata"], "uid": "uid-1"}}
