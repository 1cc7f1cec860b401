"""The recording rules by which OpenCost charges parts of cards, as Prometheus' promtool evaluates them."""

from pathlib import Path

import pytest
import yaml

from monitoring.promtool import ROOT, asked

pytestmark = pytest.mark.timeout(1200)  # a first build of promtool takes minutes

EXAMPLE = ROOT / "examples" / "opencost"
RULES_TEST = Path(__file__).with_name("opencost_rules_test.yaml")


def test_opencost_is_given_the_parts_of_cards_that_the_ledger_has(promtool: Path) -> None:
    status, text = asked(promtool, "test", "rules", str(RULES_TEST))
    assert status == 0, text


def test_the_rules_and_the_scrape_job_are_valid(promtool: Path, tmp_path: Path) -> None:
    configuration = {
        "rule_files": [str(EXAMPLE / "rules.yaml")],
        "scrape_configs": yaml.safe_load((EXAMPLE / "scrape.yaml").read_text()),
    }
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(configuration))
    status, text = asked(promtool, "check", "config", "--lint=all", "--lint-fatal", str(file))
    assert status == 0, text
