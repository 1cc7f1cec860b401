"""A seed decides everything that happens to a node."""

from itertools import pairwise

from chaos.arithmetic import asks_of
from node_chaos.plan import CHAOS_S, DISKS, LONGEST_OUTAGE_S, PROGRAMS, SHAPES, STOPPABLE, plan
from node_chaos.pods import body_of
from node_chaos.steps import Create, End, FillDisk, HangDisk, PlannedPod, ProtectDisk, Stop

SEEDS = range(1, 80)


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
    assert {plan(seed).delivery for seed in SEEDS} == {"cdi", "directory"}
    pods = [step.pod for step in steps if isinstance(step, Create)]
    assert {pod.shape for pod in pods} == SHAPES.keys()
    assert {pod.stubborn for pod in pods} == {pod.run_s is None for pod in pods} == {True, False}


def test_no_two_containers_of_a_run_ask_for_the_same_but_those_that_ask_for_a_whole_card() -> None:
    memory = [
        ask.memory_mib
        for number, shape in enumerate(sorted(SHAPES) * 90)
        for ask in asks_of(body_of(PlannedPod("a", shape, number)))
        if ask.memory_mib is not None
    ]
    assert len(set(memory)) == len(memory)
