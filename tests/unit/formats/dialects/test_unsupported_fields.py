"""Words of other systems, and typos, are named with what to do; right words are not."""

import random
from copy import deepcopy
from typing import Any

import pytest

from effort import seeds_for
from fakes.sum_cases import SUM_MODELS, random_pod
from gpuledger.configuration.dialects import admission_rules, dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.webhook import filled_in
from gpuledger.formats.dialects.unsupported import (
    MOST_WARNINGS,
    WarningKind,
    passed_over,
    pod_warnings,
    unsupported_fields,
)
from gpuledger.formats.dialects.vocabulary import SUMS
from gpuledger.formats.inspection import inspected
from gpuledger.placement.policy import Policy, Preference
from gpuledger.what_if.answer import answer
from gpuledger.what_if.scene import Given, Scene

DIALECTS = dialects_of(Settings())
GPU = {"nvidia.com/gpu": "1"}


def a_pod(
    limits: dict[str, str] = GPU,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations or {}, "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}], **spec}}


def texts(pod: dict[str, Any]) -> list[str]:
    return [warning.text for warning in pod_warnings(pod, DIALECTS)]


@pytest.mark.parametrize("seed", seeds_for("warnings of sums", 2))
def test_sums_that_admission_has_written_are_no_unknown_names(seed: int) -> None:
    rules = admission_rules(Settings().changed({"sum_models": SUM_MODELS}))
    choose, written = random.Random(seed), 0  # noqa: S311 - no secret
    for number in range(50):
        pod = random_pod(number, choose)
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            for amounts in container["resources"].values():
                for name in SUMS:
                    amounts.pop(name, None)
        summed = filled_in(deepcopy(pod), rules)
        assert pod_warnings(summed, rules.dialects) == pod_warnings(pod, rules.dialects)
        written += summed["spec"] != pod["spec"]
    assert written > 10


def test_a_pod_that_asks_by_sums_alone_is_told() -> None:
    (text,) = texts(a_pod({"gpuledger.dev/memory-mib": "8000"}))
    assert "resource gpuledger.dev/memory-mib is not known" in text


ROWS = [(row, place) for row in unsupported_fields() for place in sorted(row.places)]


@pytest.mark.parametrize(("row", "place"), ROWS, ids=[f"{row.name or row.domain}-{place}" for row, place in ROWS])
def test_each_word_is_named_once_or_known_as_no_typo(row: Any, place: str) -> None:
    name = row.name.replace("*", "x") if row.name else f"scheduling.{row.domain}/word"
    given = {"limits": {**GPU, name: "1"}} if place == "resources" else {place: {name: "x"}}
    found = passed_over(a_pod(**given), DIALECTS)
    if row.silent:
        assert not found
        return
    (warning,) = found
    assert warning.kind is WarningKind.FOREIGN
    assert name in warning.text
    assert row.system in warning.text
    assert row.here in warning.text


@pytest.mark.parametrize(
    ("pod", "near"),
    [
        (a_pod({**GPU, "nvidia.com/gpumen": "1"}), "nvidia.com/gpumem"),
        (a_pod({"nvidia.com/gpuu": "1"}), "nvidia.com/gpu"),
        (a_pod({**GPU, "volcano.sh/vgpu-memroy": "1"}), "volcano.sh/vgpu-memory"),
        (a_pod(annotations={"nvidia.com/use-gpu-type": "A100"}), "nvidia.com/use-gputype"),
        (a_pod(annotations={"hami.io/gpu-schedule-policy": "spread"}), "hami.io/gpu-scheduler-policy"),
        (a_pod(annotations={"gpuledger.dev/isolatoin": "mps"}), "gpuledger.dev/isolation"),
    ],
)
def test_a_typo_is_named_with_the_nearest_word(pod: dict[str, Any], near: str) -> None:
    (text,) = texts(pod)
    assert text.endswith(f"is not known: did you mean {near}?")


@pytest.mark.parametrize("name", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/pgpu"])
def test_what_other_plugins_serve_is_no_typo(name: str) -> None:
    assert not any("not known" in text for text in texts(a_pod({**GPU, name: "1"})))


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(),
        a_pod({}, {"volcano.sh/queue-name": "q"}),
        a_pod({"cpu": "1"}, {"koordinator.sh/x": "y"}, runtimeClassName="kata-qemu"),
        a_pod(
            {**GPU, "nvidia.com/gpumem": "1"},
            {"nvidia.com/use-gputype": "A100", "hami.io/gpu-scheduler-policy": "spread"},
        ),
        a_pod(annotations={"volcano.sh/task-spec": "t", "nvidia.com/gpu.deploy.driver": "x", "example.com/x": "y"}),
        a_pod(labels={"app": "x", "nvidia.com/something": "y"}),
    ],
)
def test_right_words_and_pods_without_gpus_get_no_warning(pod: dict[str, Any]) -> None:
    assert texts(pod) == []


def test_a_fraction_is_named_though_the_pod_asks_for_nothing_else() -> None:
    (text,) = texts(a_pod({}, {"gpu-fraction": "0.5"}))
    assert "nvidia.com/gpumem-percentage" in text


@pytest.mark.parametrize("pod", [a_pod(runtimeClassName="kata-qemu"), a_pod(labels={"kubevirt.io": "virt-launcher"})])
def test_virtual_machines_are_told_where_the_limits_are(pod: dict[str, Any]) -> None:
    (warning,) = pod_warnings(pod, DIALECTS)
    assert warning.kind is WarningKind.SANDBOX
    assert "docs/limits.md" in warning.text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("binpack,topology-aware", "the first policy counts, binpack; topology-aware has no effect"),
        ("mutex,topology-aware", "mutex has no effect"),
    ],
)
def test_further_policies_of_a_list_are_named(value: str, said: str) -> None:
    assert any(said in text for text in texts(a_pod(annotations={"hami.io/gpu-scheduler-policy": value})))


def test_a_policy_under_a_second_prefix_is_named() -> None:
    annotations = {"nvidia.com/gpu-scheduler-policy": "binpack", "hami.io/gpu-scheduler-policy": "spread"}
    said = "annotation hami.io/gpu-scheduler-policy has no effect: nvidia.com/gpu-scheduler-policy counts"
    assert texts(a_pod(annotations=annotations)) == [said]


def test_many_unknown_names_give_few_warnings() -> None:
    found = texts(a_pod({f"nvidia.com/{'x' * 300}{n}": "1" for n in range(5000)}))
    assert len(found) == MOST_WARNINGS + 1
    assert found[-1] == f"more than {MOST_WARNINGS} names have no effect"
    assert max(map(len, found)) < 250


def test_inspect_and_simulate_say_the_same() -> None:
    wrong = a_pod({**GPU, "nvidia.com/gpumen": "1"}, {"volcano.sh/queue-name": "q"})
    (inspected_pod,) = inspected({"kind": "Pod", **wrong}, DIALECTS)
    assert inspected_pod["warnings"] == texts(wrong)
    assert len(texts(wrong)) == 2
    other = {**wrong, "metadata": {**wrong["metadata"], "name": "q", "uid": "v"}}
    scene = Scene(pods=[Given("f.yaml", {"kind": "Pod", **each}) for each in (wrong, other)])
    found = answer(scene, DIALECTS, Policy(nodes=Preference.BINPACK, cards=Preference.BINPACK))
    assert [str(note) for note in found.notes] == [f"f.yaml: Pod n/p: {text}" for text in texts(wrong)]
