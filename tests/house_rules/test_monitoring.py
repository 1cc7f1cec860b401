"""Metrics, their document, alert rules and the dashboard name the same things."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart import threshold_of
from fakes.metrics import everything, families, samples
from gpuledger.agent.agent import Agent
from gpuledger.agent.config import AgentConfig
from gpuledger.agent.devices.yaml_source import YamlSource
from gpuledger.agent.isolation.choice import Isolation
from gpuledger.agent.metrics import CARDS, CONTAINERS
from gpuledger.configuration.settings import METRICS_COMPATIBILITY
from gpuledger.controller.telemetry.compatible import COMPATIBLE
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import ROOM_IS_NO_HELP, Reason
from gpuledger.model.node import NodeConfig

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "metrics.md").read_text()
MONITORING = ROOT / "manifests" / "monitoring"
RULES = yaml.safe_load((MONITORING / "rules.yaml").read_text())
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
VALUES = yaml.safe_load((ROOT / "manifests" / "chart" / "values.yaml").read_text())
RUNBOOKS = (ROOT / "docs" / "alerts.md").read_text()
ALL_RULES = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in ALL_RULES if "alert" in rule]
PARTS = ("_bucket", "_sum", "_count")
"""Endings of a histogram's samples."""


@pytest.fixture
async def agents(tmp_path: Path) -> dict[str, str]:
    """Return the name of each metric of a node agent -> its type."""
    resources = {"nvidia": ("nvidia.com/gpu",)}
    plan = AgentConfig("node-a", resources, NodeConfig(), Isolation.NONE, cdi_directory=tmp_path, mps_daemon=True)
    agent = Agent(plan, YamlSource(tmp_path / "cards.yaml"), KubeClient.__new__(KubeClient))
    return {each.name + ("_total" if each.type == "counter" else ""): each.type for each in agent._metrics()}


def expressions() -> list[str]:
    """Return all queries of the rules and of the dashboard."""
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    variables = [each["definition"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    return [*(rule["expr"] for rule in ALL_RULES), *targets, *variables]


def documented() -> dict[str, tuple[str, set[str]]]:
    """Return the name of each metric of the document -> its type and labels."""
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*) \|", DOCUMENT, re.MULTILINE)
    assert len(rows) == len({name for name, _, _ in rows})
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_the_document_has_each_metric_with_its_type_and_labels() -> None:
    text = everything().text()
    labels_of: dict[str, set[str]] = {}
    for name, labels in samples(text):
        labels_of.setdefault(name, set()).update(key for key, _ in labels)
    shown = {
        name: (kind, labels_of[name] if name in labels_of else labels_of[f"{name}_bucket"] - {"le"})
        for name, kind in families(text).items()
    }
    assert {name: each for name, each in documented().items() if not name.startswith("gpuledger_agent_")} == shown


def test_the_documents_have_each_metric_of_an_agent(agents: dict[str, str]) -> None:
    own = {name: kind for name, (kind, _) in documented().items() if name.startswith("gpuledger_agent_")}
    assert own == agents
    elsewhere = (ROOT / "docs" / "node-agent.md").read_text()
    assert set(re.findall(r"^\| `(gpuledger_agent_\w+)", elsewhere, re.MULTILINE)) == agents.keys()


def test_the_document_has_what_agents_show_under_other_names() -> None:
    section = DOCUMENT.partition("### Of node agents")[2]
    labels_of = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section, re.MULTILINE))
    rows = [row for sheets in (CARDS, CONTAINERS) for sheet in sheets.values() for row in sheet]
    shown = {name: labels for name, _, labels, _ in reversed(rows)}  # where names are the same, HAMi's labels
    assert labels_of.keys() == shown.keys()
    for name, labels in labels_of.items():
        if not labels.startswith("the same"):
            assert re.findall(r"`(\w+)`", labels) == ["zone", *shown[name]]


def test_every_metric_that_is_asked_for_is_exported(agents: dict[str, str]) -> None:
    kinds = families(everything().text()) | agents
    known = {name + part for name, kind in kinds.items() for part in (PARTS if kind == "histogram" else ("",))}
    asked = {name for each in expressions() for name in re.findall(r"\b(?:gpuledger|process)_\w+", each)}
    assert len(asked) > 40
    assert asked - known == set()


def test_rules_use_only_what_is_shown_without_cards_and_pods() -> None:
    asked = {name for rule in ALERTS for name in re.findall(r"gpuledger_\w+", rule["expr"])}
    assert not [name for name in asked if name.startswith(("gpuledger_card_", "gpuledger_pod_"))]


def test_each_alert_leads_to_its_section_of_the_document_which_says_how_it_fires() -> None:
    """A heading is an anchor of its own name in small letters, on the site as on a code host."""
    found = re.findall(r"^### (\w+)\n\n\*(\w+)(?:, for (\w+))?(?:, threshold ([0-9.]+))?\.\* ", RUNBOOKS, re.MULTILINE)
    anchors = {name.lower(): name for name, *_ in found}
    assert sorted(anchors.values()) == sorted(re.findall(r"^### (.+)$", RUNBOOKS, re.MULTILINE))
    led_to = {rule["annotations"]["runbook_url"].partition("#")[2]: rule for rule in ALERTS}
    assert {anchor: rule["alert"] for anchor, rule in led_to.items()} == anchors
    pages = {rule["annotations"]["runbook_url"].partition("#")[0] for rule in ALERTS}
    assert pages == {VALUES["monitoring"]["runbooks"]}
    assert {name: said for name, *said in found} == {
        rule["alert"]: [rule["labels"]["severity"], rule.get("for", ""), threshold_of(rule) or ""] for rule in ALERTS
    }


def test_the_alert_on_pods_that_wait_leaves_out_what_no_card_would_end() -> None:
    (rule,) = (each for each in ALERTS if each["alert"] == "GPULedgerPodWaitsLong")
    (words,) = re.findall(r'reason!~"([^"]+)"', rule["expr"])
    assert {*words.split("|")} == {reason.value for reason in ROOM_IS_NO_HELP - {Reason.NO_INVENTORY}}


def test_the_clusters_of_one_prometheus_are_kept_apart() -> None:
    """In each rule: nothing is added up, or compared, over several."""
    for rule in ALERTS:
        for operator in re.findall(r"\b(?:max|min|sum|group|count)\b(?! by \(cluster)[^_]", rule["expr"]):
            raise AssertionError(f"{rule['alert']}: {operator}")
        for labels in re.findall(r"\bon \(([^)]*)\)", rule["expr"].replace("on () absent", "")):
            assert labels.startswith("cluster"), rule["alert"]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    assert 10 < len(annotations["summary"]) < 120
    assert len(annotations["description"]) > 80
    assert not re.search(r"`(kubectl|gpuledger) [^`]*$", annotations["description"])  # no command is cut off


def test_each_alert_is_seen_to_fire_in_the_tests_of_the_rules() -> None:
    fired: set[str] = set()
    for test in yaml.safe_load((ROOT / "tests" / "monitoring" / "rules_test.yaml").read_text())["tests"]:
        for asked in test["promql_expr_test"]:
            fired |= {re.findall(r'alertname="(\w+)"', each["labels"])[0] for each in asked["exp_samples"]}
    assert fired == {rule["alert"] for rule in ALERTS}


def test_the_resource_for_the_prometheus_operator_has_the_same_rules() -> None:
    resource = yaml.safe_load((MONITORING / "prometheus_rule.yaml").read_text())
    assert resource["spec"] == RULES


def test_panels_of_the_dashboard_have_room_and_a_description() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        fields = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not fields & taken, panel["title"]
        taken |= fields
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["targets"]


def test_the_setting_names_the_systems_that_there_are() -> None:
    assert tuple(COMPATIBLE) == METRICS_COMPATIBILITY
