"""The command: `make replay REPLAY="..."`, or `python -m replay` with this folder's parent in PYTHONPATH."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gpuledger.command_line.options import Common, Failed, read_settings, settings_option
from gpuledger.command_line.output import NARROWEST
from gpuledger.configuration.settings import Settings
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import MOST_MEMBERS
from gpuledger.placement.policy import Policy
from gpuledger.reports.tables import Terminal
from replay import arrivals, departures
from replay.chart import check_chart, draw_arrivals, draw_departures
from replay.mix import History
from replay.runs import ArrivalJob, DepartureJob, run_all
from replay.trace import Trace, in_gangs, read_trace
from replay.yardsticks import COMPARED, compared_policy

ALL_POLICIES = "all"
DEFAULT_LOAD = 1.3

FIRST_SEED = 42
"""Of the published comparisons."""

existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked of a trace."""

    policies: Mapping[str, Policy]
    loads: Sequence[float]
    seeds: range
    history: History
    rounds: int
    workers: int | None


Answer = tuple[dict[str, Any], Callable[[], Iterable[tuple[str, ...]]], Callable[[Terminal], Iterable[str]]]
"""What each policy came to, and that as rows of CSV and as lines for people."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@settings_option
@click.option(
    "--nodes",
    "nodes_file",
    required=True,
    type=existing_file,
    help="CSV of nodes: sn, cpu_milli, memory_mib, gpu, model.",
)
@click.option(
    "--pods",
    "pods_file",
    required=True,
    type=existing_file,
    help="CSV of pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, creation_time, deletion_time, gang.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Policy, for both nodes and cards or as NODES/CARDS; may be repeated, or all.  [default: from the settings]",
)
@click.option(
    "--load",
    "loads",
    type=click.FloatRange(0, 100, min_open=True),
    multiple=True,
    help=f"Requested GPUs, as a multiple of the cluster's; may be repeated.  [default: {DEFAULT_LOAD}]",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=10, show_default=True, help="Runs per policy.")
@click.option(
    "--first-seed",
    type=int,
    help=f"Seed of the first run; the next ones count up.  [default: {FIRST_SEED}; 0 with --departures]",
)
@click.option(
    "--history",
    type=click.Choice(["known", "none"]),
    default="known",
    show_default=True,
    help="Policies know in advance how often each kind of pod arrives, or learn it (none).",
)
@click.option("--departures", "leaving", is_flag=True, help="Pods also leave, at the times in the trace.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="With --departures: rounds of the trace.",
)
@click.option(
    "--gangs",
    type=click.IntRange(2, MOST_MEMBERS),
    help="Pods that ask for the same whole cards come in gangs of this size, placed whole or not at all.",
)
@click.option("--chart", type=click.Path(dir_okay=False, path_type=Path), help="Draw a .png or .svg.")
@click.option("--workers", type=click.IntRange(1), help="Parallel runs.  [default: one per CPU]")
@click.option("-o", "--output", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option(
    "--no-color", is_flag=True, help="No colours, the default if NO_COLOR is set or the output is not a terminal."
)
def main(settings_file: Path | None, policies: tuple[str, ...], **options: Any) -> None:
    """Replay a trace through gpuledger's ledger and placement, without a cluster.

    The trace is in the format of Alibaba's cluster-trace-gpu-v2023. Shows how much of the GPUs each policy gets into
    use, and which pods find no place: see docs/replay.md.
    """
    chosen = _policies(policies, read_settings(settings_file))
    try:
        _replay(chosen, **options)
    except BadInput as error:
        raise Failed(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)


def _policies(names: Sequence[str], settings: Settings) -> dict[str, Policy]:
    if not names:
        nodes, cards = settings.policies
        names = [nodes if nodes == cards else f"{nodes}/{cards}"]
    names = list(COMPARED) if ALL_POLICIES in names else list(dict.fromkeys(names))
    chosen = {}
    for name in names:
        try:
            chosen[name] = compared_policy(name)
        except KeyError:
            known = f"policies are {', '.join(COMPARED)}, two of these as NODES/CARDS, and {ALL_POLICIES}"
            raise click.UsageError(f"--policy: there is no policy {name[:40]!r}; {known}") from None
    return chosen


def _replay(
    policies: Mapping[str, Policy],
    leaving: bool,
    chart: Path | None,
    gangs: int | None,
    output: str,
    no_color: bool,
    **options: Any,
) -> None:
    if chart:
        check_chart(chart)
    first_seed = options["first_seed"]
    if first_seed is None:
        first_seed = 0 if leaving else FIRST_SEED
    questions = Questions(
        policies=policies,
        loads=sorted({arrivals.as_shown(load) for load in options["loads"]}) or [DEFAULT_LOAD],
        seeds=range(first_seed, first_seed + options["seeds"]),
        history=History(options["history"]),
        rounds=options["rounds"],
        workers=options["workers"],
    )
    trace = read_trace(options["nodes_file"], options["pods_file"], with_times=leaving)
    if gangs:
        if trace.has_gangs:
            raise click.UsageError("--gangs is for traces that have none: column gang of this one names some")
        trace = in_gangs(trace, gangs)
    found, rows, lines = (_departures if leaving else _arrivals)(trace, questions)
    if output == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows())
        click.echo(text.getvalue(), nl=False)
    else:
        Common(None, None, no_color, output).show(found, lines, narrowest=NARROWEST)
    if chart:
        (draw_departures if leaving else draw_arrivals)(chart, found)


def _arrivals(trace: Trace, questions: Questions) -> Answer:
    most, seeds = max(questions.loads), questions.seeds
    loads = sorted({*questions.loads, *([1.0] if most >= 1 else [])})
    jobs = [
        ArrivalJob(policy, most, seed, questions.history) for policy in questions.policies.values() for seed in seeds
    ]
    with _progress(sum(job.steps for job in jobs)) as show:
        runs = run_all(jobs, trace, questions.workers, show)
    runs_of = {name: runs[at * len(seeds) :][: len(seeds)] for at, name in enumerate(questions.policies)}
    found = {name: arrivals.summary(each, loads, questions.history) for name, each in runs_of.items()}
    return found, lambda: arrivals.csv_rows(runs_of), lambda terminal: arrivals.as_lines(found, terminal)


def _departures(trace: Trace, questions: Questions) -> Answer:
    seeds = questions.seeds
    plans = {
        (load, seed): departures.plan_departures(trace, load, questions.rounds, seed)
        for load in questions.loads
        for seed in seeds
    }
    keys = [(name, load, seed) for name in questions.policies for load, seed in plans]
    jobs = [
        DepartureJob(questions.policies[name], plans[load, seed], seed, questions.history) for name, load, seed in keys
    ]
    with _progress(sum(job.steps for job in jobs)) as show:
        results = dict(zip(keys, run_all(jobs, trace, questions.workers, show), strict=True))
    runs_of = {
        name: {load: [results[name, load, seed] for seed in seeds] for load in questions.loads}
        for name in questions.policies
    }
    found = {name: departures.summary(runs_at, questions.history) for name, runs_at in runs_of.items()}
    return found, lambda: departures.csv_rows(runs_of), lambda terminal: departures.as_lines(found, terminal)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show how far it is on a terminal, and nothing anywhere else: what is printed stays clean."""
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=total, label="replaying", file=sys.stderr, hidden=hidden) as progress:
        yield lambda steps: progress.update(steps - progress.pos)


if __name__ == "__main__":
    main(prog_name="python -m replay")
