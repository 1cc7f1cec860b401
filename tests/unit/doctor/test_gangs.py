"""The feature gates of kube-scheduler go with the settings, and pods of a gang with each other."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.doctor_facts import a_deployment, healthy
from fakes.objects import a_pod_object
from gpuledger.doctor.examination import examine
from gpuledger.doctor.facts import Release

Json = dict[str, Any]


def deployment(version: str, *flags: str) -> Json:
    found = a_deployment()
    container = {
        "name": "kube-scheduler",
        "image": f"registry.example:5000/kube-scheduler:v{version}",
        "command": ["kube-scheduler", *flags],
    }
    containers = found["spec"]["template"]["spec"]["containers"]
    containers[:] = [each for each in containers if each["name"] != "kube-scheduler"] + [container]
    return found


def texts(kind: str, **changes: Any) -> list[str]:
    return [finding.text for finding in examine(healthy(**changes)).findings if finding.kind.value == kind]


def of_gates(version: str, gates: str, native_gangs: bool) -> list[str]:
    release = healthy().release
    assert isinstance(release, Release)
    flags = [f"--feature-gates={gates}"] if gates else []
    release = replace(release, native_gangs=native_gangs)
    return texts("group-gates", deployment=deployment(version, *flags), release=release)


BOTH = "GenericWorkload=true,GangScheduling=true"


@pytest.mark.parametrize(
    ("version", "gates", "native_gangs"),
    [
        ("1.36.3", "", False),
        ("1.34.4", "", False),
        ("1.36.3", f"{BOTH},SchedulerPopFromBackoffQ=false", True),
        ("1.37.2", "GenericWorkload=true", True),
    ],
)
def test_gates_that_go_with_the_settings_are_fine(version: str, gates: str, native_gangs: bool) -> None:
    assert of_gates(version, gates, native_gangs) == []


@pytest.mark.parametrize(
    ("version", "gates", "native_gangs", "said"),
    [
        ("1.36.3", BOTH, True, "SchedulerPopFromBackoffQ=false"),
        ("1.36.3", f"{BOTH},SchedulerPopFromBackoffQ=true", True, "without a pause"),
        ("1.37.2", "GenericWorkload=true", False, "native_gangs is not set"),
        ("1.37.2", "", True, "has no feature gate"),
        ("1.37.2", "GenericWorkload=false", True, "has no feature gate"),
    ],
)
def test_gates_that_do_not_are_named(version: str, gates: str, native_gangs: bool, said: str) -> None:
    (text,) = of_gates(version, gates, native_gangs)
    assert said in text


def member(name: str, **fields: Any) -> Json:
    found = a_pod_object(name, **fields)
    found["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    return found


def of_groups(*pods: Json) -> list[str]:
    return texts("group-divided", pods=list(pods))


def test_a_gang_of_which_another_scheduler_places_a_part_is_named_with_both_counts() -> None:
    (text,) = of_groups(member("a"), member("b"), member("c", scheduler_name="default-scheduler"))
    assert "3 pods" in text
    assert "1 by default-scheduler" in text


def test_a_gang_of_kubernetes_whose_priorities_differ_is_named_with_both() -> None:
    (text,) = of_groups(member("a", priority=5), member("b", priority=7))
    assert "5" in text
    assert "7" in text
    labelled = [a_pod_object(name, priority=number) for number, name in enumerate("ab")]
    for pod in labelled:
        pod["metadata"]["labels"] = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
    assert of_groups(*labelled) == []  # other gangs have the highest of their priorities


def test_gangs_of_others_and_whole_ones_are_fine() -> None:
    assert of_groups(member("a"), member("b")) == []
    assert of_groups(member("a", scheduler_name="volcano"), member("b", scheduler_name="default-scheduler")) == []
