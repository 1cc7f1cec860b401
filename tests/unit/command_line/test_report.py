"""`report`: what is printed, and what somebody is told who may read one namespace and no records."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from click.testing import CliRunner, Result

from builders import a_card
from fakes.allocations import a_list, two_nodes
from fakes.kubectl import FakeKubectl
from fakes.usage_records import days_until, many_records
from gpuledger.command_line.commands import report as command
from gpuledger.command_line.output import ALLOCATIONS
from gpuledger.command_line.program import main
from gpuledger.command_line.top.rows import NODES
from gpuledger.formats.idle import IDLE_ANNOTATION, Idleness, idle_annotation
from gpuledger.reports.account import Days, Question, Tally

Json = dict[str, Any]

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
USAGES = "/apis/gpuledger.dev/v1alpha1/gpuusages"
TOKEN = "/api/v1/namespaces/team-a/serviceaccounts/default/token"
ASK = "/api/v1/namespaces/gpuledger-system/services/gpuledger-explain:explain/proxy/v1/report"
FORBIDDEN = (403, {"reason": "Forbidden", "message": "you may not"})
RECORDS = list(many_records(["team-a", "team-b"], days_until(NOW.date(), 3), lines=2))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["report", *arguments])


def told_to_team_a() -> Json:
    tally = Tally(Question("namespace", Days(date(2026, 10, 31), date(2026, 12, 1)), ("team-a",)), NOW)
    for each in RECORDS:
        tally.add_record(each)
    return tally.report([])


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "utc_now", lambda: NOW)


@pytest.fixture
def developer(kubectl: FakeKubectl) -> FakeKubectl:
    answers = {TOKEN: {"status": {"token": "t"}}, ASK: told_to_team_a()}
    kubectl.tell(answers, {ALLOCATIONS: FORBIDDEN, USAGES: FORBIDDEN}, namespace="team-a")
    return kubectl


def test_rows_and_their_sum_are_a_table(kubectl: FakeKubectl) -> None:
    kubectl.tell({ALLOCATIONS: a_list(), USAGES: a_list(*RECORDS)})
    result = run()
    assert result.exit_code == 0, result.output
    title, _, heads, *lines = result.stdout.splitlines()
    assert title == "GPUs held from 2026-10-31 to 2026-11-30 (UTC)"
    assert heads.split()[:2] == ["NAMESPACE", "CARD-HOURS"]
    assert [line.split()[0] for line in lines] == ["team-a", "team-b", "total"]
    rows = [line.split(",") for line in run("--by", "day", "-o", "csv").stdout.splitlines()]
    assert [row[0].lower() for row in rows] == ["day", "2026-11-28", "2026-11-29", "2026-11-30"]


def test_days_have_bars_of_which_the_longest_is_the_most(kubectl: FakeKubectl) -> None:
    kubectl.tell({ALLOCATIONS: a_list(), USAGES: a_list(*RECORDS)})
    lines = [line.split() for line in run("--by", "day").stdout.splitlines()[3:6]]
    hours = [float(hours) for _, _, hours, *_ in lines]
    lengths = [bar.count("#") + bar.count("█") for _, bar, *_ in lines]
    assert max(lengths) == 20
    assert lengths.index(20) == hours.index(max(hours))
    assert sorted(zip(hours, lengths, strict=True)) == list(zip(sorted(hours), sorted(lengths), strict=True))


def test_a_day_that_can_not_be_meant_is_named_with_its_option(kubectl: FakeKubectl) -> None:
    result = run("--until", "2026-10-01")
    assert result.exit_code == 2
    assert "--until 2026-10-01 is the first day that is not counted" in result.stderr


def test_who_may_read_one_namespace_is_told_by_the_operator_what_that_held(developer: FakeKubectl) -> None:
    result = run("-n", "team-a", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == told_to_team_a()
    [asked] = [path for _, path, _ in developer.requests if path.startswith(ASK)]
    assert dict(parse_qsl(urlsplit(asked).query)) == {
        "namespace": "team-a",
        "by": "namespace",
        "since": "2026-10-31",
        "until": "2026-12-01",
    }


def test_without_a_name_it_is_the_contexts_namespace_and_says_so(developer: FakeKubectl) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert "team-b" not in result.stdout
    assert "This is namespace team-a alone" in result.stderr


@pytest.mark.parametrize("options", [("-A",), ("-n", "team-b")])
def test_all_namespaces_and_another_one_need_the_records(developer: FakeKubectl, options: tuple[str, ...]) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert "gpuledger-viewer" in result.stderr


def test_prices_need_the_records(developer: FakeKubectl, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("A100: 2\n")
    result = run("--price", str(prices))
    assert result.exit_code == 2
    assert "--price needs the records themselves" in result.stderr


def test_without_the_role_both_that_would_help_are_named(kubectl: FakeKubectl) -> None:
    refused = dict.fromkeys((ALLOCATIONS, USAGES, TOKEN), FORBIDDEN)
    kubectl.tell({}, refused, namespace="team-a")
    result = run("-n", "team-a")
    assert result.exit_code == 2
    assert "ClusterRole gpuledger-viewer" in result.stderr
    assert "Role gpuledger-developer in namespace gpuledger-system" in result.stderr


def test_who_may_read_cards_and_no_records_is_told_of_the_own_namespace_too(kubectl: FakeKubectl) -> None:
    answers = {ALLOCATIONS: a_list(), TOKEN: {"status": {"token": "t"}}, ASK: told_to_team_a()}
    kubectl.tell(answers, {USAGES: FORBIDDEN}, namespace="team-a")
    result = run("-n", "team-a", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, told_to_team_a())


def test_shares_that_are_idle_now_are_listed_those_first_that_waste_most(kubectl: FakeKubectl) -> None:
    first, second = (a_card(index, "node-10").uuid for index in (0, 1))
    said = {
        ("uid-chat", first): Idleness(NOW - timedelta(minutes=20)),
        ("uid-train", second): Idleness(NOW - timedelta(hours=3)),
        ("uid-gone", first): Idleness(NOW - timedelta(days=9)),  # who holds nothing
    }
    nodes = a_list(
        {"metadata": {"name": "node-10", "annotations": {IDLE_ANNOTATION: idle_annotation(said, NOW, "agent")}}}
    )
    kubectl.tell({ALLOCATIONS: a_list(*two_nodes()), NODES: nodes})
    result = run("--idle")
    assert result.exit_code == 0, result.output
    rows = json.loads(run("--idle", "-o", "json").stdout)["idle"]
    assert [(row["pod"], row["idleSeconds"]) for row in rows] == [("train", 3 * 3600), ("chat", 20 * 60)]
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["POD", "train", "chat"]
    assert json.loads(run("--idle", "-n", "nobody", "-o", "json").stdout) == {"idle": []}
