"""What Prometheus' own promtool says of metrics, alert rules and the dashboard's queries."""

import json
from pathlib import Path

import pytest
import yaml

from builders import a_card, a_holder, a_ledger, a_share, stored
from fakes.metrics import ALL, Shown, everything
from monitoring.promtool import MONITORING, asked

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]  # a first build takes minutes

RULES_TEST = Path(__file__).with_name("rules_test.yaml")


def test_the_rules_are_valid(promtool: Path) -> None:
    status, text = asked(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(MONITORING / "rules.yaml"))
    assert status == 0, text


def test_each_alert_fires_when_it_has_to_and_only_then(promtool: Path) -> None:
    status, text = asked(promtool, "test", "rules", str(RULES_TEST))
    assert status == 0, text


def test_an_alert_that_is_missing_fails_the_tests_of_the_rules(promtool: Path, tmp_path: Path) -> None:
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    rules["groups"][0]["rules"].pop()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    tests = yaml.safe_load(RULES_TEST.read_text()) | {"rule_files": ["rules.yaml"]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(tests))
    status, text = asked(promtool, "test", "rules", str(tmp_path / "test.yaml"))
    assert status != 0
    assert rules["groups"][0]["rules"][-1]["alert"] in text


def test_our_metrics_are_named_as_prometheus_wants_it(promtool: Path) -> None:
    card = a_card()
    ledger = a_ledger()
    ledger.load(stored(card, a_holder("a", a_share(card))))
    assert asked(promtool, "check", "metrics", stdin=Shown(ledger).metrics().text()) == (0, "")


def test_of_all_metrics_only_names_of_others_are_unusual(promtool: Path) -> None:
    """Their names are as they are; that the text can be read is what counts."""
    _, text = asked(promtool, "check", "metrics", stdin=everything().text())
    lines = text.splitlines()
    assert len(lines) > len(ALL)
    theirs = ("hami_", "GPU", "Quota", "nodeGPU", "vGPU", "volcano_")
    assert [line for line in lines if not line.startswith(theirs)] == []


def test_the_queries_of_the_dashboard_are_valid(promtool: Path, tmp_path: Path) -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    filled_in = [query.replace("$__rate_interval", "5m").replace("$node", ".*") for query in queries]
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(filled_in)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    status, text = asked(promtool, "check", "rules", str(file))
    assert status == 0, text
    assert f"{len(queries)} rules found" in text
