"""`gpuledger simulate`: traces and scenes; what each of them runs is imported when it is asked for."""

from __future__ import annotations

import csv
import io
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.command_line import output as out
from gpuledger.command_line.options import Failed, access_options, in_cluster, read_settings, settings_option
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import MOST_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpuledger.configuration.settings import Settings
    from gpuledger.kube_api.client import KubeClient
    from gpuledger.placement.policy import Policy
    from gpuledger.reports.tables import Terminal
    from gpuledger.simulation.mix import History
    from gpuledger.simulation.trace import Trace

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
    seeds: int
    first_seed: int
    history: History
    rounds: int
    workers: int | None


@dataclass(frozen=True, slots=True)
class Printing:
    """How answers are printed."""

    output: str
    no_color: bool


@click.command()
@settings_option
@click.option(
    "--nodes", "nodes_file", type=existing_file, help="Trace: CSV of nodes: sn, cpu_milli, memory_mib, gpu, model."
)
@click.option(
    "--pods",
    "pods_file",
    type=existing_file,
    help="Trace: CSV of pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, creation_time, deletion_time, "
    "gang.",
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
    help=f"Trace: requested GPUs, as a multiple of the cluster's; may be repeated.  [default: {DEFAULT_LOAD}]",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=10, show_default=True, help="Trace: runs per policy.")
@click.option(
    "--first-seed",
    type=int,
    help=f"Trace: seed of the first run; the next ones count up.  [default: {FIRST_SEED}; 0 with --departures]",
)
@click.option(
    "--history",
    type=click.Choice(["known", "none"]),
    default="known",
    show_default=True,
    help="Trace: policies know in advance how often each kind of pod arrives, or learn it (none).",
)
@click.option(
    "--departures", is_flag=True, help="Trace: pods also leave, at the times in the trace; see docs/simulate.md."
)
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
    help="Trace: pods that ask for the same whole cards come in gangs of this size, placed whole or not at all.",
)
@click.option(
    "--chart", type=click.Path(dir_okay=False, path_type=Path), help="Trace: draw a .png or .svg; needs matplotlib."
)
@click.option("--workers", type=click.IntRange(1), help="Trace: parallel runs.  [default: one per CPU]")
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    help="Nodes and Pods: a YAML or JSON file, a folder, or - for standard input.",
)
@click.option("--from-cluster", is_flag=True, help="Start from the live cluster's nodes, ledger and waiting pods.")
@click.option("--add-nodes", type=click.IntRange(0, 10_000), default=0, help="Number of nodes to add.")
@click.option("--like", metavar="NODE", help="Node that the added nodes copy.")
@click.option("-o", "--output", type=click.Choice(["table", "wide", "json", "csv"]), default="table", show_default=True)
@access_options
@click.pass_context
def simulate(
    command: click.Context, /, output: str, policies: tuple[str, ...], settings_file: Path | None, **options: Any
) -> None:
    """Try placement without a cluster: replay a trace, or see where pods would go.

    With --nodes and --pods, it replays a trace in the format of Alibaba's cluster-trace-gpu-v2023 through ledger and
    placement, and shows how much of the GPUs each policy gets into use, and which pods find no place.

    With -f, it reads Nodes (with the register of any device plugin) and Pods. Bound pods with their cards in an
    annotation keep them; the others are placed in turn, and shown with their cards or the reasons. With
    --from-cluster, it starts from the cluster as it is: would this pod fit, and would it with four more nodes
    (--add-nodes 4 --like NODE)? It respects kube-scheduler's conditions on CPU, memory, taints, nodeSelector and
    required node affinity, but not preferences, affinity between pods, spread constraints, volumes, ports and the
    number of pods. Pods that are alike are one line; -o wide shows each. Exit status: 1 if an object can't be read,
    2 after an error or if there are no nodes.
    """
    settings = read_settings(settings_file, options["kubeconfig"], options["context"])
    is_trace = bool(options["nodes_file"] or options["pods_file"])
    is_scene = bool(options["files"] or options["from_cluster"])
    if is_trace == is_scene:
        raise click.UsageError("give a trace (--nodes FILE --pods FILE), or a scene (-f FILE, --from-cluster)")
    if is_scene and output == "csv":
        raise click.UsageError("-o csv is for traces")
    if is_trace and output == "wide":
        raise click.UsageError("-o wide is for Nodes and Pods")
    _check_options(command, is_trace)
    try:
        chosen = _policies(policies, settings)
        if is_trace:
            _replay(output, chosen, options)
        elif len(chosen) > 1:
            raise click.UsageError("one --policy at a time for Nodes and Pods")
        else:
            _place(command, output, settings, next(iter(chosen.values())), options)
    except BadInput as error:
        raise Failed(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)


OF_TRACES = ("loads", "seeds", "first_seed", "history", "departures", "rounds", "gangs", "chart", "workers")
OF_SCENES = ("add_nodes", "like")


def _check_options(command: click.Context, is_trace: bool) -> None:
    for name in OF_SCENES if is_trace else OF_TRACES:
        if command.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            [flag] = [each.opts[0] for each in command.command.params if each.name == name]
            raise click.UsageError(f"{flag} is for {'Nodes and Pods' if is_trace else 'traces'}")
    if is_trace and not (command.params["nodes_file"] and command.params["pods_file"]):
        raise click.UsageError("a trace is two files: --nodes FILE --pods FILE")
    if bool(command.params["add_nodes"]) != bool(command.params["like"]):
        raise click.UsageError("--add-nodes N and --like NODE go together")


def _policies(names: Sequence[str], settings: Settings) -> dict[str, Policy]:
    from gpuledger.placement.policy import Preference
    from gpuledger.simulation.runs import preference_pair

    if not names:
        nodes, cards = settings.policies
        names = [nodes if nodes == cards else f"{nodes}/{cards}"]
    everyone = [each.value for each in Preference]
    names = everyone if ALL_POLICIES in names else list(dict.fromkeys(names))
    chosen = {}
    for name in names:
        try:
            chosen[name] = preference_pair(name)
        except ValueError:
            known = f"policies are {', '.join(everyone)}, two of these as NODES/CARDS, and {ALL_POLICIES}"
            raise click.UsageError(f"--policy: there is no policy {name[:40]!r}; {known}") from None
    return chosen


# Traces.


def _replay(output: str, policies: Mapping[str, Policy], options: Mapping[str, Any]) -> None:
    from gpuledger.simulation.arrivals import as_shown
    from gpuledger.simulation.chart import check_chart
    from gpuledger.simulation.mix import History
    from gpuledger.simulation.trace import in_gangs, read_trace

    departures, chart = options["departures"], options["chart"]
    if chart:
        check_chart(chart)
    first_seed = options["first_seed"]
    questions = Questions(
        policies=policies,
        loads=sorted({as_shown(load) for load in options["loads"]}) or [DEFAULT_LOAD],
        seeds=options["seeds"],
        first_seed=first_seed if first_seed is not None else 0 if departures else FIRST_SEED,
        history=History(options["history"]),
        rounds=options["rounds"],
        workers=options["workers"],
    )
    trace = read_trace(options["nodes_file"], options["pods_file"], with_times=departures)
    if options["gangs"]:
        if trace.has_gangs:
            raise click.UsageError("--gangs is for traces that have none: column gang of this one names some")
        trace = in_gangs(trace, options["gangs"])
    (_departures if departures else _arrivals)(trace, questions, Printing(output, options["no_color"]), chart)


def _arrivals(trace: Trace, questions: Questions, printing: Printing, chart: Path | None) -> None:
    from gpuledger.simulation.arrivals import as_lines, csv_rows, summary
    from gpuledger.simulation.chart import draw_arrivals
    from gpuledger.simulation.runs import ArrivalJob, run_all

    most = max(questions.loads)
    loads = sorted({*questions.loads, *([1.0] if most >= 1 else [])})
    seeds = range(questions.first_seed, questions.first_seed + questions.seeds)
    jobs = [
        ArrivalJob(policy, most, seed, questions.history) for policy in questions.policies.values() for seed in seeds
    ]
    with _progress(sum(job.steps for job in jobs)) as show:
        runs = run_all(jobs, trace, questions.workers, show)
    runs_of = {name: runs[at * len(seeds) :][: len(seeds)] for at, name in enumerate(questions.policies)}
    found = {name: summary(each, loads, questions.history) for name, each in runs_of.items()}
    _print(printing, found, lambda: csv_rows(runs_of), lambda terminal: as_lines(found, terminal))
    if chart:
        draw_arrivals(chart, found)


def _departures(trace: Trace, questions: Questions, printing: Printing, chart: Path | None) -> None:
    from gpuledger.simulation.chart import draw_departures
    from gpuledger.simulation.departures import as_lines, csv_rows, plan_departures, summary
    from gpuledger.simulation.runs import DepartureJob, run_all

    seeds = range(questions.first_seed, questions.first_seed + questions.seeds)
    plans = {
        (load, seed): plan_departures(trace, load, questions.rounds, seed) for load in questions.loads for seed in seeds
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
    found = {name: summary(runs_at, questions.history) for name, runs_at in runs_of.items()}
    _print(printing, found, lambda: csv_rows(runs_of), lambda terminal: as_lines(found, terminal))
    if chart:
        draw_departures(chart, found)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show how far it is on a terminal, and nothing anywhere else: what is printed stays clean."""
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=total, label="replaying", file=sys.stderr, hidden=hidden) as progress:
        yield lambda steps: progress.update(steps - progress.pos)


def _print(
    printing: Printing,
    found: object,
    rows: Callable[[], Iterable[tuple[str, ...]]],
    lines: Callable[[Terminal], Iterable[str]],
) -> None:
    if printing.output == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows())
        click.echo(text.getvalue(), nl=False)
    else:
        out.show(found, printing.output, lines, printing.no_color, out.NARROWEST)


# Nodes and Pods.


def _no_nodes(given: bool, from_cluster: bool) -> str:
    if given:
        return "no node can be used, so there is nowhere to place pods: see the errors above"
    if from_cluster:
        return "the cluster has no nodes, and no file has one, so there is nowhere to place pods"
    return (
        "no Node was given, so there is nowhere to place pods: add some with -f "
        "(kubectl get nodes -o yaml > nodes.yaml), or take those of the cluster with --from-cluster"
    )


def _place(command: click.Context, output: str, settings: Settings, policy: Policy, options: Mapping[str, Any]) -> None:
    from gpuledger.configuration.dialects import dialects_of
    from gpuledger.kube_api.reads import KubeReads
    from gpuledger.simulation.objects import in_few_lines, read_objects
    from gpuledger.simulation.what_if import Scene, answer, as_json, as_lines, read_scene

    dialects = dialects_of(settings)

    async def read(client: KubeClient) -> Scene:
        return await read_scene(KubeReads(client), settings.scheduler_names, dialects)

    scene = in_cluster(options["kubeconfig"], options["context"], read) if options["from_cluster"] else Scene()
    scene.add(read_objects(options["files"]))
    scene.zone_labels = settings.gang_zones
    found = answer(scene, dialects, policy, options["add_nodes"], options["like"] or "")
    if found.has_nodes:
        out.show(
            as_json(found) if output == "json" else found,
            output,
            lambda terminal: as_lines(found, terminal, output == "wide"),
            options["no_color"],
            out.NARROWEST,
        )
    for note in in_few_lines(found.notes):
        click.echo(f"note: {note}", err=True)
    for problem in in_few_lines(found.problems):
        click.echo(f"error: {problem}", err=True)
    if not found.has_nodes:
        raise Failed(_no_nodes(bool(scene.nodes), bool(options["from_cluster"])))
    command.exit(1 if found.problems else 0)
