"""What was run is not run again, unless the product has changed."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from chaos import results
from chaos.checker import Finding
from chaos.outcome import Outcome
from chaos.plan import Plan, plan
from chaos.report import show_report
from chaos.results import FAILED, PASSED, VOID


def outcome(seed: int, *findings: Finding) -> Outcome[Plan]:
    found = Outcome(plan(seed, 10), list(findings), checks=5, chaos_s=10.0, rest_s=2.0)
    found.counts.update({"pods bound": 3, "Kill": 2, "Create": 9})
    found.faults = {"binding: Delay(seconds=0.05)": 2, "filter: Delay(seconds=1.0)": 1, "binding: Drop()": 4}
    return found


def test_only_seeds_with_a_verdict_for_this_version_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for seed, version, verdict in ((1, "a", PASSED), (2, "a", FAILED), (3, "a", VOID), (4, "b", PASSED)):
        results.append(file, results.record(outcome(seed), version, verdict))
    with file.open("a") as unfinished:
        unfinished.write('{"seed": 5, "version": "a", "ver')
    assert results.judged(file, "a", 10) == {1, 2}
    assert results.judged(file, "a", 30) == set()


def test_a_line_counts_faults_by_their_kind() -> None:
    line = results.record(outcome(1), "a", PASSED)
    assert line["faults"] == {"Delay": 3, "Drop": 4}


def test_the_report_names_the_seeds_of_each_finding(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    results.append(file, results.record(outcome(7, Finding("a rule is broken", "here")), "a", FAILED))
    results.append(file, results.record(outcome(8), "a", PASSED))
    console = Console(width=200, record=True, file=StringIO())
    show_report(results.read(file), console)
    shown = console.export_text()
    assert "1 x a rule is broken; seeds 7" in shown
    assert "a (" in shown


def test_the_version_is_that_of_the_product() -> None:
    assert results.version() == results.version()
    assert len(results.version()) == results.VERSION_LENGTH
