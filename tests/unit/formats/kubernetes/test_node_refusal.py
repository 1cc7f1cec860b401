"""Why kube-scheduler does not take a node is worked out from the objects, with the numbers that people need."""

from collections.abc import Sequence
from typing import Any

import pytest

from fakes.objects import a_container, a_pod_object
from gpuledger.formats.kubernetes.constraints import Taken, against_rules, lacking, taken_of

Json = dict[str, Any]

FPGA = "example.com/fpga"


def a_node(**spec: object) -> Json:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "3", FPGA: "2"}
    metadata = {"name": "node-a", "labels": {"disk": "hdd"}}
    return {"metadata": metadata, "spec": spec, "status": {"allocatable": allocatable}}


def taken(*pods: Json, names: Sequence[str] = ()) -> list[Taken]:
    return [found for pod in pods if (found := taken_of(pod, names))]


def asking(name: str = "pod", **limits: str) -> Json:
    renamed = {FPGA if key == "fpga" else key: value for key, value in limits.items()}
    return a_pod_object(name, containers=[a_container("main", renamed)])


@pytest.mark.parametrize(
    ("asked", "code", "numbers"),
    [
        ({"cpu": "500"}, "host-cpu", ("500 CPUs", "2.5 of 4")),
        ({"cpu": "2500m"}, None, ()),
        ({"memory": "9Gi"}, "host-memory", ("9,216 MiB", "8,192 of 8,192 MiB")),
        ({"fpga": "2"}, "resource", ("2 example.com/fpga", "1 of 2")),
        ({"fpga": "1"}, None, ()),
    ],
)
def test_amounts_are_compared_with_what_the_pods_there_leave(
    asked: dict[str, str], code: str | None, numbers: tuple[str, ...]
) -> None:
    there = [
        {**asking("other", cpu="1500m", fpga="1"), "status": {"phase": "Running"}},
        {**asking("ended", cpu="4", fpga="2"), "status": {"phase": "Succeeded"}},
    ]
    names = ("cpu", FPGA)
    found = lacking(asking(**asked), a_node(), taken(*there, names=names), names)
    assert (found and found[0]) == code
    assert all(number in found[1] for number in numbers) if found else not numbers


def test_a_resource_that_the_node_does_not_know_is_named() -> None:
    pod = a_pod_object(containers=[a_container("main", {"nvidia.com/gpumen": "5"})])
    found = lacking(pod, a_node(), [], ("nvidia.com/gpumen",))
    assert found
    assert (found[0], "nvidia.com/gpumen" in found[1], "none" in found[1]) == ("resource", True, True)


def test_a_node_with_as_many_pods_as_it_may_have() -> None:
    others = taken(*(asking(f"other-{number}") for number in range(3)))
    found = lacking(asking(cpu="1m"), a_node(), others, ())
    assert found
    assert found[0] == "pods"


@pytest.mark.parametrize(
    ("pod_spec", "node_spec", "code", "word"),
    [
        ({}, {"unschedulable": True}, "unschedulable", "cordoned"),
        ({}, {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}, "taint", "team=a:NoSchedule"),
        ({"nodeSelector": {"disk": "ssd"}}, {}, "node-selector", "disk=ssd"),
        ({"nodeSelector": {"disk": "hdd"}}, {}, None, ""),
        ({"nodeSelector": "odd"}, {}, None, ""),
    ],
)
def test_rules_are_named_with_what_they_are_about(pod_spec: Json, node_spec: Json, code: str | None, word: str) -> None:
    found = against_rules({"spec": pod_spec}, a_node(**node_spec))
    assert (found and found[0]) == code
    assert word in (found[1] if found else "")
