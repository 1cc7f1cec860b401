"""A key that the chart does not have is refused, with the one that was probably meant."""

import json
import shutil
from functools import reduce
from pathlib import Path

import pytest

from chart import DOCUMENT, ELSEWHERE
from manifests.helm import CHART, KUBERNETES, NAMESPACE, Helm, Json

FLAGS = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES)

NEAR = {
    "operater": "operator",
    "agnet": "agent",
    "settings.resource_memroy": "settings.resource_memory",
    "settings.nodePolicy": "settings.node_policy",
    "settings.node-policy": "settings.node_policy",
    "settings.nod_polici": "settings.node_policy",
    "operator.Replicas": "operator.replicas",
    "operator.resources.limit": "operator.resources.limits",
    "monitoring.alerts.GPULedgerNoLead": "monitoring.alerts.GPULedgerNoLeader",
    "monitoring.alerts.GPULedgerNoLeader.severty": "monitoring.alerts.GPULedgerNoLeader.severity",
}
"""A misspelled key -> what was meant."""

ANOTHER_LEVEL = {
    "node_policy": "settings.node_policy",
    "operator.nodePolicy": "settings.node_policy",
    "replicas": "operator.replicas",
    "webhook": "admission.webhook",
}
"""A key in a wrong place -> the right one."""

NOTHING_NEAR = {
    "foo": "`helm show values` lists them",
    "nodeSelector": "`helm show values` lists them",  # of the operator, or of the agents?
    "securityContext": "`helm show values` lists them",  # not that of MPS
    "settings.foo": "docs/settings.md lists the settings",
    "monitoring.alerts.Foo": "docs/alerts.md lists the alerts",
    "image.name": "image has repository, tag, pullPolicy",
    "agent.mps.image": "agent.mps has resources, securityContext, sharedMemory",
    "monitoring.alerts.GPULedgerNoLeader.threshold": "monitoring.alerts.GPULedgerNoLeader has enabled, severity, for",
}
"""A key that is like no other -> where the right ones are."""


def merged(one: Json, other: Json) -> Json:
    """Return values with those of another file, as Helm merges them."""
    both = {key: merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(one[key], dict)}
    return {**one, **other, **both}


def at(path: str) -> Json:
    """Return values with one at a path."""
    value: Json = {}
    for step in reversed(path.split(".")):
        value = {step: value}
    return value


def refusal(helm: Helm, values: Json, directory: Path) -> list[str]:
    """Return the lines that Helm says of a file of values."""
    (directory / "values.yaml").write_text(json.dumps(values))
    text = helm.refusal(f"--values={directory / 'values.yaml'}")
    return text.split("\n\n")[1].splitlines()


@pytest.mark.parametrize("known", [NEAR, ANOTHER_LEVEL, ELSEWHERE], ids=["near", "another-level", "other-charts"])
def test_what_was_meant_is_named_for_all_wrong_keys_at_once(helm: Helm, tmp_path: Path, known: dict[str, str]) -> None:
    expected = {f"{wrong} is not a value of this chart. Did you mean {meant}?" for wrong, meant in known.items()}
    assert set(refusal(helm, reduce(merged, map(at, known)), tmp_path)) == expected


def test_where_nothing_is_near_the_place_of_the_right_keys_is_named(helm: Helm, tmp_path: Path) -> None:
    expected = {f"{wrong} is not a value of this chart; {where}." for wrong, where in NOTHING_NEAR.items()}
    assert set(refusal(helm, reduce(merged, map(at, NOTHING_NEAR)), tmp_path)) == expected


def test_the_document_shows_what_helm_says(helm: Helm, tmp_path: Path) -> None:
    lines = refusal(helm, {"replicaCount": 3, "settings": {"nodePolicy": "spread", "foo": 1}}, tmp_path)
    assert "\n".join(["```text", *lines, "```"]) in DOCUMENT.read_text()


def test_a_path_that_is_written_as_one_key_is_to_become_levels(helm: Helm, tmp_path: Path) -> None:
    values = {"operator.replicas": 1, "agent": {"mps.sharedMemory": "1%"}, "settings": {"node.policy": "spread"}}
    assert set(refusal(helm, values, tmp_path)) == {
        '"operator.replicas" is not a value of this chart. Did you mean operator: {replicas: ...}?',
        'agent."mps.sharedMemory" is not a value of this chart. Did you mean agent: {mps: {sharedMemory: ...}}?',
        'settings."node.policy" is not a value of this chart. Did you mean settings.node_policy?',
    }


@pytest.mark.parametrize("key", ["", "-", "_", "prénom", "two\nlines", 'a"b', "x" * 1_000])
def test_a_wrong_key_can_be_any_text(helm: Helm, tmp_path: Path, key: str) -> None:
    (line,) = refusal(helm, {key: 1}, tmp_path)
    assert line.endswith(" is not a value of this chart; `helm show values` lists them.")


def test_where_a_whole_file_is_wrong_the_message_stays_short(helm: Helm, tmp_path: Path) -> None:
    lines = refusal(helm, {"settings": {f"memory_scale_{number}": 1 for number in range(500)}}, tmp_path)
    assert (len(lines), lines[-1]) == (41, "And 460 more.")


def test_a_wrong_value_is_named_before_wrong_keys(helm: Helm) -> None:
    assert "got string, want integer" in helm.refusal(operator={"replicas": "two"}, foo=1)


def test_null_takes_a_default_away(helm: Helm) -> None:
    helm.objects(settings={"node_policy": None}, agent={"mps": None, "nodeSelector": None}, audit={"resources": None})
    assert "settings.foo is not a value of this chart" in helm.refusal(settings={"foo": None})


def test_lint_refuses_a_wrong_key_too(helm: Helm) -> None:
    status, text = helm.run("lint", str(CHART), *FLAGS, "--set=settings.nodePolicy=spread")
    assert status == 1
    assert "settings.nodePolicy is not a value of this chart. Did you mean settings.node_policy?" in text


@pytest.fixture
def umbrella(tmp_path: Path) -> Path:
    """Return a chart that has ours as a part, under another name."""
    chart = tmp_path / "umbrella"
    shutil.copytree(CHART, chart / "charts" / "gpuledger")
    dependency = "{name: gpuledger, version: '*', alias: gpus}"
    (chart / "Chart.yaml").write_text(
        f"{{apiVersion: v2, name: umbrella, version: 1.0.0, dependencies: [{dependency}]}}"
    )
    return chart


def test_as_a_part_of_another_chart_keys_are_named_by_their_place_in_its_values(helm: Helm, umbrella: Path) -> None:
    render = ("template", "umbrella", str(umbrella), *FLAGS)
    status, text = helm.run(*render, "--set=global.team=a,other=1,gpus.settings.node_policy=spread")
    assert (status, "node_policy: spread" in text) == (0, True)
    status, text = helm.run(*render, "--set=gpus.settings.nodePolicy=spread")
    assert status == 1
    assert "gpus.settings.nodePolicy is not a value of this chart. Did you mean gpus.settings.node_policy?" in text
