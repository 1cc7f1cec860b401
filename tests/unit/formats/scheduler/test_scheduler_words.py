"""kube-scheduler's message is taken apart: what is its own, what is ours, and whether it asked the operator at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.objects import a_pod_object, with_conditions
from gpuledger.formats.scheduler import SchedulerWords, read_words, scheduler_words

ITS_PREEMPTION = " no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful."


@pytest.mark.parametrize(
    ("message", "own", "refused_all"),
    [
        (f"0/3 nodes are available: 3 Insufficient cpu.{ITS_PREEMPTION}", (("Insufficient cpu", 3),), True),
        (
            f"0/9 nodes are available: 1 node(s) were unschedulable, 8 Insufficient nvidia.com/gpumen.{ITS_PREEMPTION}",
            (("Insufficient nvidia.com/gpumen", 8), ("node(s) were unschedulable", 1)),
            True,
        ),
        (
            "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 no card with 30 percent cores free. More.",
            (("node(s) had untolerated taint(s)", 1),),
            False,
        ),
        ("0/3 nodes are available: 3 no card with 4000 MiB, cores and a slot free together.", (), False),
        (
            '0/3 nodes are available: persistentvolumeclaim "data" not found. preemption: not helpful',
            (('persistentvolumeclaim "data" not found', 0),),
            True,
        ),
        ("no nodes available to schedule pods", (("no nodes available to schedule pods", 0),), True),
        ("0/3 nodes are available", (), False),
        ("something else happened: 3 Insufficient cpu", (), False),
    ],
)
def test_its_own_reasons_are_told_from_ours(message: str, own: tuple[tuple[str, int], ...], refused_all: bool) -> None:
    assert read_words(message) == SchedulerWords(own, refused_all)


def test_the_resources_that_it_found_too_little_of_are_named() -> None:
    words = read_words("0/3 nodes are available: 1 Too many pods, 2 Insufficient cpu, 3 Insufficient example.com/fpga.")
    assert words.short_of == ("example.com/fpga", "cpu")


@pytest.mark.parametrize(
    ("reasons", "rules_out"),
    [
        ("3 node(s) didn't match Pod's node affinity/selector", True),
        ("1 node(s) had untolerated taint {key: value}, 2 node(s) were unschedulable", True),
        ("1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector", False),
        ("1 node(s) didn't have free ports for the requested pod ports, 2 node(s) were unschedulable", False),
        ("1 no card entirely free, 2 node(s) were unschedulable", False),
        ('persistentvolumeclaim "data" not found', False),
    ],
)
def test_nodes_that_no_pod_that_leaves_would_open_are_told_from_others(reasons: str, rules_out: bool) -> None:
    assert read_words(f"0/3 nodes are available: {reasons}.{ITS_PREEMPTION}").rules_out is rules_out


def test_a_pod_with_scheduling_gates_is_not_looked_at() -> None:
    pod = a_pod_object()
    pod["spec"]["schedulingGates"] = [{"name": "quota.example.com/wait"}]
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked"}
    assert scheduler_words(with_conditions(pod, [gated])) == SchedulerWords(gates=("quota.example.com/wait",))
    assert scheduler_words(with_conditions(pod, [gated])).rules_out


@pytest.mark.parametrize(
    "condition",
    [
        {"type": "PodScheduled", "status": "True"},
        {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "binding rejected"},
        {"type": "Ready", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available: x."},
    ],
)
def test_other_conditions_say_nothing_of_nodes(condition: dict[str, str]) -> None:
    assert scheduler_words(with_conditions(a_pod_object(), [condition])) == SchedulerWords()


@given(st.text(max_size=300))
def test_any_message_can_be_read(text: str) -> None:
    read_words(text)
    read_words(f"0/3 nodes are available: {text}")
