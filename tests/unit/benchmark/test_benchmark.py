"""What the benchmark calculates from what it has measured."""

import asyncio
import json
from pathlib import Path
from types import GeneratorType
from typing import Any, cast

import pytest
from rich.console import Console

from benchmark.compare import compare
from benchmark.filter_alone import Ledger, Sizes, measure_filters
from benchmark.gangs import OrderWatch
from benchmark.measuring import quantile
from benchmark.plan import AT_THE_FIRST_SIZE, CASES, Plan
from benchmark.quotas_alone import NONE, OTHERS, THEIRS, measure_quotas
from benchmark.results import Row, Run, medians
from benchmark.sampling import Samples
from benchmark.shapes import SHAPES, Shape, burst, cards_of
from benchmark.soak import State, table
from benchmark.table import GANGS, show, with_ratios
from gpuledger.formats.kubernetes.gang import GANG_LABEL
from gpuledger.kube_api.client import KubeClient
from gpuledger.placement.policy import Preference


def a_row(subject: str = "gpuledger", number: int = 0, **figures: float) -> Row:
    return Row("mix", 200, subject, number, figures)


def a_run(*rows: Row) -> Run:
    return Run("2030-01-01T00:00:00+00:00", {"cpu": "one", "cores": 2}, {"commit": "abc"}, list(rows))


def buckets(**counts: float) -> dict[str, float]:
    return {f'h_seconds_bucket{{le="{le.lstrip("_").replace("_", ".")}"}}': value for le, value in counts.items()}


def test_a_quantile_lies_within_its_bucket_as_if_that_were_evenly_filled() -> None:
    found = buckets(_1_0=0, _2_0=100, _4_0=200) | {'h_seconds_bucket{le="+Inf"}': 200}
    assert quantile(found, "h_seconds", 0.25) == pytest.approx(1.5)
    assert quantile(found, "h_seconds", 0.99) == pytest.approx(3.96)


def test_a_quantile_beyond_the_last_bucket_is_at_least_its_bound() -> None:
    assert quantile(buckets(_1_0=1) | {'h_seconds_bucket{le="+Inf"}': 10}, "h_seconds", 0.99) == 1.0


def test_rounds_are_summed_up_by_their_medians() -> None:
    rows = [a_row(number=number, seconds=seconds) for number, seconds in enumerate((9.0, 1.0, 2.0))]
    assert medians(rows) == {("mix", 200, "gpuledger"): {"seconds": 2.0}}


def test_gangs_are_compared_with_the_same_pods_without_a_group() -> None:
    rows = [a_row(pods_per_s=50.0), a_row(GANGS, pods_per_s=45.0)]
    found = with_ratios(medians(rows))
    assert found["mix", 200, GANGS]["to_single"] == pytest.approx(0.9)
    assert "to_single" not in found["mix", 200, "gpuledger"]


def shown(watch: OrderWatch, uid: str, entered: int, bound: int) -> None:
    """Show a watch a member whose share is entered at one version, and that is bound at another."""
    pod = {"metadata": {"uid": uid, "labels": {GANG_LABEL: "train"}}, "spec": {}}
    watch._take_pod(pod, 1)
    watch._take_card({"status": {"holders": [{"podUID": uid}]}}, entered)
    watch._take_pod({**pod, "spec": {"nodeName": "node-a"}}, bound)


@pytest.mark.parametrize(("last_entered", "early"), [(5, 0), (7, 1), (9, 3)])
def test_a_binding_before_the_cards_of_the_gang_are_in_the_ledger_is_counted(last_entered: int, early: int) -> None:
    watch = OrderWatch(cast(KubeClient, None))
    for uid, entered, bound in (("a", 3, 6), ("b", 4, 8), ("c", last_entered, 8)):
        shown(watch, uid, entered, bound)
    assert watch.early_bindings(3) == early


def test_ratios_are_to_kube_scheduler_by_itself_of_the_same_case_and_size() -> None:
    rows = [
        a_row("plain", pods_per_s=200.0),
        a_row("stock", pods_per_s=100.0),
        a_row(pods_per_s=150.0),
        Row("mix", 1000, "gpuledger", 0, {"pods_per_s": 1}),
    ]
    found = with_ratios(medians(rows))
    ratios = {
        who: (found["mix", 200, who].get("to_plain"), found["mix", 200, who].get("to_stock"))
        for who in ("plain", "stock", "gpuledger")
    }
    assert ratios == {"plain": (None, None), "stock": (0.5, None), "gpuledger": (0.75, 1.5)}
    assert "to_plain" not in found["mix", 1000, "gpuledger"]


def test_a_run_is_read_as_it_was_saved(tmp_path: Path) -> None:
    run = a_run(a_row(seconds=1.5))
    run.save(tmp_path / "new" / "run.json")
    assert Run.load(tmp_path / "new" / "run.json") == run


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"format": 99}), json.dumps({"format": 1, "rows": []})])
def test_a_file_that_is_no_run_is_refused_by_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"other\.json is no result of this benchmark"):
        Run.load(file)


def test_two_runs_are_compared_where_both_have_figures() -> None:
    first = a_run(a_row(seconds=2.0, filter_p99_ms=1.0), a_row("plain", seconds=1.0))
    second = a_run(a_row(seconds=3.0))
    console = Console(width=120)
    with console.capture() as shown:
        console.print(compare(first, second))
    rows = [line.split() for line in shown.get().splitlines() if "seconds" in line or "filter" in line]
    assert rows == [["mix", "200", "gpuledger", "seconds", "2.00", "3.00", "1.50"]]


POD_FIGURES = (
    *("pods", "seconds", "pods_per_s", "cards_per_s", "bound_p50_s", "bound_p99_s", "attempts_per_pod"),
    *("operator_cpu_ms_per_pod", "scheduler_cpu_ms_per_pod", "api_server_cpu_ms_per_pod", "filter_p50_ms"),
)


def test_the_table_of_a_whole_run_is_told_in_full_on_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Each kind of case has a table of its own: what is measured of one is no empty column of the others."""
    pods = {"pods": 500.0, "pods_per_s": 111.5, "cards_per_s": 27.9, "bound_p50_s": 1.39, "bound_p99_s": 1.94}
    costs = dict.fromkeys(("operator_cpu_ms_per_pod", "scheduler_cpu_ms_per_pod", "api_server_cpu_ms_per_pod"), 108.7)
    rows = [
        Row("first-start", 200, "gpuledger", 0, {"seconds": 14.26, "writes_per_card": 3.0}),
        Row("quarter-card", 200, "gpuledger", 0, pods | costs | {"evaluations_per_filter": 1.2}),
        Row("gangs-of-8", 200, GANGS, 0, pods | costs | {"early_bindings": 0.0}),
        Row("claims", 200, "gpuledger, claims", 0, pods | costs | {"cards_used": 167.0, "nodes_used": 21.0}),
    ]
    run = a_run(*rows)
    run.machine["load_at_start"] = [0.1]
    run.versions.update(kubernetes="v1.36.3", python="3.11")
    show(run)
    printed = capsys.readouterr().out
    assert "…" not in printed
    titles = [line.strip() for line in printed.splitlines() if line.strip() in ("Starts", "Pods", "Gangs", "Claims")]
    assert titles == ["Starts", "Pods", "Gangs", "Claims"]
    assert [printed.count(figure) for figure in ("14.26", "108.7/108.7/108.7", "167/21")] == [1, 3, 1]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_gets_several_tables_and_loses_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr("benchmark.table.wide_console", lambda: Console(width=width))
    figures = {name: 1000.0 + number for number, name in enumerate(POD_FIGURES)}
    rows = Row("mix", 200, "gpuledger", 0, figures), Row("mix", 200, "floor", 0, {"seconds": 1.5})
    run = a_run(*rows)
    run.machine["load_at_start"] = [0.1]
    run.versions.update(kubernetes="v1.36.3", python="3.11")
    show(run)
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines()) <= width
    assert [name for name, value in figures.items() if printed.count(f"{value:.0f}") != 1] == []
    assert printed.count("floor") == 1, "nobody has a row where nothing of him was measured"


def test_cases_that_are_about_one_size_run_at_the_first() -> None:
    plan = Plan((200, 5000), pods=1000, rounds=2, cases=frozenset(CASES))
    assert plan.cases_at(200) - plan.cases_at(5000) == {*AT_THE_FIRST_SIZE}
    assert {"paced", "full-cluster", "looked-at", "slow-writes", "gangs-of-8", "gangs-of-64", "claims"} == {
        *AT_THE_FIRST_SIZE
    }
    assert (plan.effort(200).pods, plan.effort(5000).pods) == (1000, 250)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.name)
def test_a_burst_takes_as_many_cards_as_its_shape_says_and_fits(shape: Shape) -> None:
    count = shape.pods_for(nodes=200, wanted=2000)
    bodies = burst(shape, count, "gpuledger")
    cards = [cards_of(body["spec"]["containers"][0]["resources"]["limits"]) for body in bodies]
    assert sum(cards) == pytest.approx(count * shape.cards_per_pod, rel=0.1)
    assert sum(cards) <= 200 * 8


@pytest.mark.parametrize(("subject", "names"), [("plain", set()), ("stock", {"nvidia.com/gpu"})])
def test_kube_scheduler_by_itself_has_pods_that_it_understands(subject: str, names: set[str]) -> None:
    bodies = burst(SHAPES["mix"], 20, subject)
    assert all(body["spec"]["schedulerName"] == "plain" for body in bodies)
    assert all(body["spec"]["containers"][0]["resources"]["limits"].keys() == names for body in bodies)


@pytest.mark.parametrize("policy", ["binpack", "fragmentation"])
async def test_filter_is_measured_without_a_cluster(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    await measure_filters(Sizes([3], 20, Preference(policy)), profile=None, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert {row["question"]: row["asked"] for row in rows} == {
        "mix": 20,
        "quarter-card": 20,
        "first of its shape": 10,
        "refused": 20,
    }
    assert all(0 < row["p50 ms"] <= row["p99 ms"] <= row["max ms"] for row in rows)


async def test_what_questions_have_started_is_stopped_before_its_ledger_goes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as what a pod is told, seconds after it was refused: nothing but its ledger refers to that task."""
    started: list[asyncio.Task[Any]] = []

    def ask(ledger: Ledger, filters: int) -> list[dict[str, object]]:
        started.append(asyncio.create_task(asyncio.Event().wait()))
        return [{"asked": filters}]

    monkeypatch.setattr("benchmark.filter_alone._measure", ask)
    await measure_filters(Sizes([3, 4], 20, Preference.BINPACK), profile=None, as_json=True)
    assert [task.cancelled() for task in started] == [True, True]
    assert capsys.readouterr().out


async def test_quotas_are_measured_beside_none(capsys: pytest.CaptureFixture[str]) -> None:
    await measure_quotas(Sizes([3], 20, Preference.BINPACK), 5, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["question"], row["quotas of"]) for row in rows] == [
        (question, quotas) for question in ("mix", "quarter-card") for quotas in (NONE, OTHERS, THEIRS)
    ]
    assert all(row["ratio"] == pytest.approx(row["p50 CPU ms"] / rows[0]["p50 CPU ms"]) for row in rows[:3])


def test_samples_are_taken_of_what_is_asked_for(tmp_path: Path) -> None:
    samples = Samples()
    with samples.taken():
        sum(number * number for number in range(2_000_000))
        with samples.of("sums"):
            while not samples.stacks:
                sum(number * number for number in range(10_000))
    assert samples.subjects() == ["sums"]
    samples.save(tmp_path / "folded")
    assert (tmp_path / "folded").read_text().startswith("sums;")


def test_what_the_benchmark_does_itself_is_no_sample() -> None:
    samples = Samples()
    with (counted := samples.of("sums")):
        assert isinstance(counted.gen, GeneratorType)
        samples._take(0, counted.gen.gi_frame)
    assert not samples.stacks


@pytest.mark.parametrize("rounds", [1, 12, 34])
def test_the_table_of_a_soak_begins_at_the_start_and_has_the_end_once(rounds: int) -> None:
    shown = table(100, [State(1000 * number, 80.0 + number, 90.0) for number in range(rounds + 1)])
    assigned = list(shown.columns[0].cells)
    assert (assigned[0], assigned[-1]) == ("0", f"{1000 * rounds:,}")
    assert len(set(assigned)) == len(assigned) <= 13
