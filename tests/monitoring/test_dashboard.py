"""Each query of the dashboard finds what the operator and the agents expose, and its panels draw it as it is.

Prometheus itself evaluates the queries (promtool), over our own metrics of a small cluster in which everything happens.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import a_card, a_holder, a_request, a_share, mib, stored
from fakes.metrics import Shown, a_report, families, samples
from fakes.virtual_time import EPOCH
from gpuledger.model.card import CardPhase
from gpuledger.model.errors import Reason
from gpuledger.model.share import Pod
from gpuledger.workflows.accounts import Today
from monitoring.promtool import MONITORING, asked

Json = dict[str, Any]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]  # a first build takes minutes

PANELS: list[Json] = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
TARGETS = [target for panel in PANELS for target in panel.get("targets", [])]
STACKS = [each for each in PANELS if "stacking" in each.get("fieldConfig", {}).get("defaults", {}).get("custom", {})]
AGENT = {  # series -> value, as docs/metrics.md has them: a process of uid-a, and one of a pod without a share
    'gpuledger_agent_card_healthy{uuid="GPU-node-a-0",index="0"}': 1,
    'gpuledger_agent_process_memory_bytes{uuid="GPU-node-a-0",pod_uid="uid-a",has_share="true"}': 1_000,
    'gpuledger_agent_processes{uuid="GPU-node-a-0",pod_uid="uid-a",has_share="true"}': 1,
    'gpuledger_agent_processes{uuid="GPU-node-a-0",pod_uid="uid-z",has_share="false"}': 1,
}


def query(target: Json) -> str:
    """Return a query with its variables filled in as Grafana does where all nodes and namespaces are chosen."""
    text: str = target["expr"].replace("$__rate_interval", "5m").replace("$node", ".*").replace("$namespace", ".*")
    assert "$" not in text
    return text


def the_metrics() -> bytes:
    """Return what the operator exposes where a card is held alone, one has no slot left, and one is unhealthy."""
    shown = Shown(reports=[a_report("c", "2030-01-01T00:00:00Z", {Reason.NO_MEMORY: 1})])
    alone, full, broken = a_card(0), a_card(1, number=1), a_card(2)
    shown.ledger.load(stored(alone, a_holder("uid-a", a_share(alone, 4_000, 100, exclusive=True))))
    shown.ledger.load(stored(full, a_holder("uid-b", a_share(full, 1_000, 25))))
    shown.ledger.load(replace(stored(broken), phase="Unhealthy", reason="it has fallen off the bus"))
    shown.today = Today("2030-01-01", EPOCH, {("team", "", "A100"): 1000}, lambda ended: False)
    shown.spends_and_is_idle()
    shown.waiting.refused(Pod("uid-c", "team", "c"), a_request(mib(99_000)), "2030-01-01T00:00:00Z", ["node-a"])
    return shown.metrics().text()


def input_series() -> list[Json]:
    """Return them as promtool reads them: gauges stay, counters grow by one each minute."""
    text = the_metrics()
    kinds = families(text)
    series = []
    for (name, labels), value in samples(text).items():
        joined = ",".join(f"{key}={json.dumps(label)}" for key, label in labels)
        gauge = kinds.get(name) == "gauge"
        series.append({"series": f"{name}{{{joined}}}", "values": f"{value}x30" if gauge else "0+1x30"})
    return series + [{"series": name, "values": f"{value}x30"} for name, value in AGENT.items()]


def without_data(promtool: Path, directory: Path, queries: Sequence[str]) -> list[str]:
    """Return the queries that find nothing."""
    tests = [
        {"expr": f"count({each})", "eval_time": "20m", "exp_samples": []}  # right only for those that find nothing
        for each in queries
    ]
    file = directory / "queries.yaml"
    content = {"tests": [{"interval": "1m", "input_series": input_series(), "promql_expr_test": tests}]}
    file.write_text(yaml.safe_dump(content, width=10_000))
    status, text = asked(promtool, "test", "rules", str(file))
    found = re.findall(r'expr: "(.*)", time: 20m,\s+exp:\s*nil\s+got:', text)
    assert (status != 0) == bool(found), text
    answered = {json.loads(f'"{each}"') for each in found}
    return [each for each in queries if f"count({each})" not in answered]


def test_every_query_of_the_dashboard_finds_data_where_everything_happens(promtool: Path, tmp_path: Path) -> None:
    rare = "gpuledger_ledger_write_failures_total"  # a series begins with the first failure
    asked_for = [query(target) for target in TARGETS if rare not in target["expr"]]
    misspelt = 'max by (model) (gpuledger_cards{phase="ready"})'
    assert without_data(promtool, tmp_path, [*asked_for, misspelt]) == [misspelt]


@pytest.mark.parametrize("panel", [each for each in PANELS if each["type"] == "table"], ids=lambda each: each["title"])
def test_a_table_has_an_order_for_each_of_its_columns(panel: Json) -> None:
    """Grafana puts a column without one behind all others, after identifiers of forty letters."""
    groups = re.findall(r"max by \(([^)]*)\) \(", query(panel["targets"][0]))
    labels = {label.strip() for group in groups for label in group.split(",")}
    organized = next(each["options"] for each in panel["transformations"] if each["id"] == "organize")
    columns = [name for name in organized["indexByName"] if not name.startswith("Value")]
    assert set(columns) == labels
    shown = {organized["renameByName"].get(name, name) for name in organized["indexByName"]}
    assert {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]} <= shown
    assert {each["displayName"] for each in panel["options"].get("sortBy", [])} <= shown


@pytest.mark.parametrize("panel", STACKS, ids=lambda each: each["title"])
def test_a_stack_leaves_out_what_is_zero(panel: Json) -> None:
    """A line of zeros lies on top of the stack, in its own colour, as if all of it were of its kind."""
    assert [target["expr"] for target in panel["targets"] if not target["expr"].endswith("> 0")] == []


def test_every_phase_of_a_card_has_a_colour_of_its_own() -> None:
    (panel,) = (each for each in PANELS if each["title"] == "Cards by phase")
    colours = {
        each["matcher"]["options"]: each["properties"][0]["value"]["fixedColor"]
        for each in panel["fieldConfig"]["overrides"]
    }
    assert colours.keys() == {phase.value for phase in CardPhase}
    assert len(set(colours.values())) == len(colours)
