"""`make replay`: what it prints, for people and for programs."""

import csv
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fakes.traces import HALF, NO_GPU, PAIR, WHOLE, a_node, a_trace, written
from gpuledger.placement.policy import Policy, Preference
from replay.__main__ import main
from replay.arrivals import ArrivalRun
from replay.mix import History
from replay.runs import ArrivalJob, run_all

pytestmark = pytest.mark.thorough  # processes and timeouts: seconds in which one waits

Json = dict[str, Any]

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n" + "".join(
    f"p{number},1,1,{cards},{milli},{number * 10},{number * 10 + 35}\n"
    for number, (cards, milli) in enumerate([(1, 1000), (1, 500), (2, 1000), (0, 0)] * 25)
)


def replay(folder: Path, *arguments: str, pods: str = PODS) -> Result:
    nodes_file, pods_file = written(folder, pods=pods)
    return CliRunner().invoke(main, ["--nodes", nodes_file, "--pods", pods_file, "--workers", "1", *arguments])


def test_json_has_the_allocation_ratio_of_each_policy_at_each_load(tmp_path: Path) -> None:
    result = replay(tmp_path, "--policy", "binpack", "--policy", "spread", "--seeds", "3", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert list(found) == ["binpack", "spread"]
    one = found["binpack"]
    assert list(one["allocation_ratio"]) == ["1.0", "1.3"]
    assert 0.5 < one["allocation_ratio"]["1.0"] <= one["allocation_ratio"]["1.3"] <= 1.0
    assert list(one["seeds"]) == ["42", "43", "44"]
    assert one["allocation_ratio"]["1.3"] == pytest.approx(sum(run["1.3"] for run in one["seeds"].values()) / 3)
    assert one["spread"]["1.3"]["min"] <= one["allocation_ratio"]["1.3"] <= one["spread"]["1.3"]["max"]
    assert one["unplaced_pods"] == pytest.approx(sum(one["unplaced_by_reason"].values()))
    assert one["history"] == "known"
    assert one["curve"][0] == {"load": 0.0, "allocation_ratio": 0.0, "fragmentation": 0.0}
    assert one["curve"][-1]["load"] == 1.3


def test_loads_seeds_and_all_policies(tmp_path: Path) -> None:
    arguments = ("--policy", "all", "--load", "0.5", "--load", "2", "--seeds", "1", "--first-seed", "7")
    found = json.loads(replay(tmp_path, *arguments, "-o", "json", "--history", "none").stdout)
    assert list(found) == [*(each.value for each in Preference), "fgd", "best-fit"]
    assert list(found["binpack"]["allocation_ratio"]) == ["0.5", "1.0", "2.0"]
    assert list(found["binpack"]["seeds"]) == ["7"]
    assert found["binpack"]["history"] == "none"


def test_without_a_policy_it_is_that_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("card_policy: spread\n")
    found = replay(tmp_path, "--seeds", "1", "-o", "json", "--settings", str(tmp_path / "settings.yaml"))
    assert list(json.loads(found.stdout)) == ["fragmentation/spread"]


def test_the_table(tmp_path: Path) -> None:
    lines = replay(tmp_path, "--policy", "binpack", "--policy", "spread", "--seeds", "2").stdout.splitlines()
    assert lines[0].split("  ")[0] == "POLICY"
    assert [word for word in lines[0].split() if word.endswith("%")] == ["100%", "130%"]
    assert sorted(line.split()[0] for line in lines[1:]) == ["binpack", "spread"]
    assert "no-whole-card" in lines[1]


def test_loads_that_are_close_to_each_other_or_to_nothing(tmp_path: Path) -> None:
    loads = ("0.004", "0.504", "0.508", "0.5080000001")
    arguments = ("--policy", "binpack", "--seeds", "1", *(word for load in loads for word in ("--load", load)))
    found = json.loads(replay(tmp_path, *arguments, "-o", "json").stdout)["binpack"]["allocation_ratio"]
    assert list(found) == ["0.004", "0.504", "0.508"]
    assert found["0.004"] > 0
    head = replay(tmp_path, *arguments).stdout.splitlines()[0]
    assert [word for word in head.split() if word.endswith("%")] == ["0.4%", "50.4%", "50.8%"]
    lines = replay(tmp_path, "--departures", *arguments[:4], "--load", "0.504", "--load", "0.508").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["50.4%", "50.8%"]


def test_csv_is_the_curve_of_each_run(tmp_path: Path) -> None:
    result = replay(tmp_path, "--policy", "binpack", "--seeds", "2", "--load", "0.5", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {(row["policy"], row["seed"]) for row in rows} == {("binpack", "42"), ("binpack", "43")}
    assert (rows[0]["arrived_load"], rows[0]["allocation_ratio"]) == ("0", "0.000000")
    assert float(rows[-1]["arrived_load"]) == 0.5


def test_departures(tmp_path: Path) -> None:
    arguments = ("--departures", "--policy", "binpack", "--seeds", "2", "--load", "0.8", "--load", "1.2")
    found = json.loads(replay(tmp_path, *arguments, "-o", "json").stdout)["binpack"]
    assert list(found["loads"]) == ["0.8", "1.2"]
    light, heavy = found["loads"].values()
    assert light["accepted_demand"] > heavy["accepted_demand"]
    assert light["allocation_ratio"] < heavy["allocation_ratio"]
    assert light["compression"] < heavy["compression"]
    assert list(light["waits"]) == ["no GPU", "share", "1", "2"]
    assert list(light["seeds"]) == ["0", "1"]
    rows = list(csv.DictReader(io.StringIO(replay(tmp_path, *arguments, "-o", "csv").stdout)))
    assert len(rows) == 2 * 2 * 4
    assert {row["size"] for row in rows} == {"no GPU", "share", "1", "2"}
    lines = replay(tmp_path, *arguments).stdout.splitlines()
    assert lines[0].split() == [
        "LOAD",
        "POLICY",
        "ACCEPTED",
        "SERVED",
        "IN",
        "USE",
        "SHARE",
        "WAITS",
        "1",
        "GPU",
        "2",
        "GPUS",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["80%", "120%"]


def test_a_load_that_the_rounds_cannot_reach_is_said_before_anything_runs(tmp_path: Path) -> None:
    result = replay(tmp_path, "--departures", "--load", "99", "--rounds", "1")
    assert result.exit_code == 2
    assert "give more --rounds" in result.stderr


def test_a_bad_trace_is_named(tmp_path: Path) -> None:
    result = replay(tmp_path, pods=PODS.replace("p3,1", "p3,x", 1))
    assert result.exit_code == 2
    assert f"Error: {tmp_path / 'pods.csv'}, line 5, column cpu_milli: 'x' is no whole number" in result.stderr
    assert result.stdout == ""


# Gangs.


def test_gangs_that_are_made_of_pods_that_ask_for_the_same(tmp_path: Path) -> None:
    arguments = ("--policy", "binpack", "--seeds", "1", "--gangs", "2")
    found = json.loads(replay(tmp_path, *arguments, "-o", "json").stdout)["binpack"]
    assert found["gangs"] > found["whole_gangs"] > 0
    assert "WHOLE GANGS" in replay(tmp_path, *arguments).stdout
    leaving = (*arguments, "--departures", "--load", "0.8")
    found = json.loads(replay(tmp_path, *leaving, "-o", "json").stdout)["binpack"]["loads"]["0.8"]["gangs"]
    assert found["gangs"] == found["placed_whole"] + found["still_waiting"] > 0
    assert "GANGS WAIT" in replay(tmp_path, *leaving).stdout


def test_gangs_that_the_trace_names(tmp_path: Path) -> None:
    head, *lines = PODS.splitlines()
    gangs = [f"g{number // 8}" if line.split(",")[3] == "1" else "" for number, line in enumerate(lines)]
    pods = "\n".join([f"{head},gang", *(f"{line},{gang}" for line, gang in zip(lines, gangs, strict=True))]) + "\n"
    arguments = ("--policy", "binpack", "--seeds", "1", "--load", "8", "-o", "json")
    assert json.loads(replay(tmp_path, *arguments, pods=pods).stdout)["binpack"]["gangs"] > 0
    refused = replay(tmp_path, "--gangs", "2", pods=pods)
    assert (refused.exit_code, "column gang" in refused.stderr) == (2, True)


def test_a_trace_of_which_no_gang_can_be_made(tmp_path: Path) -> None:
    result = replay(tmp_path, "--gangs", "200")
    assert (result.exit_code, "no gang of 200" in result.stderr) == (2, True)


# Charts.


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
@pytest.mark.parametrize("mode", [(), ("--departures",)])
def test_a_chart_is_drawn(tmp_path: Path, name: str, begins: bytes, mode: tuple[str, ...]) -> None:
    chart = tmp_path / name
    arguments = ("--policy", "binpack", "--seeds", "1", "--load", "0.9", "--chart", str(chart), *mode)
    result = replay(tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert chart.read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("chart", "said"), [("a.pdf", "neither a .png nor a .svg"), ("missing/a.png", "there is no folder")]
)
def test_a_chart_that_cannot_be_drawn(tmp_path: Path, chart: str, said: str) -> None:
    result = replay(tmp_path, "--chart", str(tmp_path / chart))
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_chart_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = replay(tmp_path, "--chart", str(tmp_path / "a.png"))
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.stderr


# Several runs at a time.


def jobs(*seeds: int, history: History = History.NONE) -> list[ArrivalJob]:
    return [ArrivalJob(Policy(), 1.0, seed, history) for seed in seeds]


def test_processes_of_their_own_come_to_the_same_and_tell_how_far_they_are() -> None:
    trace = a_trace([a_node(cards=8)], WHOLE, HALF, PAIR, NO_GPU)
    told: list[int] = []
    alone = run_all(jobs(1, 2, 3), trace, 1, told.append)
    assert told == list(range(1, sum(len(run.points) - 1 for run in alone) + 1))
    assert run_all(jobs(1, 2, 3), trace, 2, told.append) == alone
    assert told[-1] == sum(len(run.points) - 1 for run in alone)


def test_a_system_that_does_not_say_which_cpus_a_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    trace = a_trace([a_node(cards=8)], WHOLE)
    assert [run.seed for run in run_all(jobs(1, 2), trace, None, lambda _: None)] == [1, 2]


class Failing(ArrivalJob):
    """A job that fails."""

    def run(self, *_: object) -> ArrivalRun:
        raise ValueError("as it should")


def test_an_error_in_a_process_ends_all_of_them() -> None:
    trace = a_trace([a_node(cards=8)], WHOLE)
    failing: Iterator[ArrivalJob] = (Failing(Policy(), 1.0, seed, History.NONE) for seed in range(3))
    with pytest.raises(ValueError, match="as it should"):
        run_all(list(failing), trace, 2, lambda _: None)


# How it is called.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", __file__], "Missing option '--pods'"),
        (["--nodes", __file__, "--pods", __file__, "-o", "wide"], "'wide' is not one of 'table', 'json', 'csv'"),
        (["--nodes", __file__, "--pods", __file__, "--policy", "tetris"], "there is no policy 'tetris'; policies are"),
        (
            ["--nodes", __file__, "--pods", __file__, "--policy", "FGD"],
            "there is no policy 'FGD'",
        ),
        (["--nodes", __file__, "--pods", __file__, "--policy", "fgd/"], "two of these as NODES/CARDS, and all"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.stderr
