"""How fast gpuledger is, and what it costs, beside kube-scheduler by itself and the API server by itself.

    python tools/bench.py                         a table, in some five minutes
    python tools/bench.py --full                  all sizes, an hour
    python tools/bench.py compare A.json B.json   two runs beside each other
    python tools/bench.py show A.json             a run that was kept
    python tools/bench.py filter                  Filter alone, without a cluster
    python tools/bench.py filter --quotas 1000    the same with quotas, beside none
    python tools/bench.py preempt                 the choice of victims alone, without a cluster
    python tools/bench.py watches                 Kopf's watches beside the plain one, without a cluster
    python tools/bench.py soak                    the operator's memory over 100,000 assignments, 20 minutes

Absolute figures mean little, for everything shares the machine; ratios within one run are the result.
docs/performance.md says what each figure means.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmark.compare import show_comparison
from benchmark.filter_alone import Sizes, measure_filters
from benchmark.ledger_memory import measure_memory
from benchmark.plan import CASES, Plan, begin, carry_out
from benchmark.preemption_alone import measure_preemption
from benchmark.quotas_alone import measure_quotas
from benchmark.results import Run
from benchmark.soak import soak
from benchmark.table import show
from benchmark.watches_alone import measure_watches
from control_plane import ControlPlaneError
from gpuledger.model.errors import GpuledgerError
from gpuledger.placement.policy import Preference
from installation import REPOSITORY

KEPT = REPOSITORY / "build" / "bench"
QUICK_NODES, FULL_NODES = (200,), (200, 1000, 5000)
QUICK_PODS, FULL_PODS = 500, 2000
QUICK_ROUNDS, FULL_ROUNDS = 2, 3


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _cases(text: str) -> frozenset[str]:
    chosen = frozenset(text.split(","))
    if not chosen <= set(CASES):
        raise argparse.ArgumentTypeError(f"cases are {', '.join(CASES)}")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--full", action="store_true", help="all sizes, more pods and rounds")
    parser.add_argument("--nodes", type=_numbers, help="sizes, such as 200,1000; each node has 8 cards")
    parser.add_argument("--pods", type=int, help="pods in a burst, if they fit; a quarter of that from 5,000 nodes on")
    parser.add_argument("--rounds", type=int, help="how often each is measured")
    parser.add_argument("--only", type=_cases, default=frozenset(CASES), help=", ".join(CASES))
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--save", type=Path, help="where the JSON is kept; by default in build/bench/")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    comparing = commands.add_parser("compare", help="print two runs beside each other")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    comparing.add_argument("--all", action="store_true", help="all figures")
    showing = commands.add_parser("show", help="print the table of a run that was kept")
    showing.add_argument("run", type=Path)
    filtering = commands.add_parser("filter", help="measure Filter alone, in this process")
    filtering.add_argument("--nodes", type=_numbers, default=FULL_NODES)
    filtering.add_argument("--filters", type=int, default=2000, help="questions at each size")
    filtering.add_argument("--policy", type=Preference, default=Preference.BINPACK, choices=list(Preference))
    filtering.add_argument("--quotas", type=int, help="what so many namespaces with a quota cost, as a ratio")
    filtering.add_argument("--profile", type=Path, help="sample, print the top, and write collapsed stacks here")
    filtering.add_argument("-o", "--output", choices=("table", "json"), default="table")
    preempting = commands.add_parser("preempt", help="measure the choice of victims alone, in this process")
    preempting.add_argument("--nodes", type=_numbers, default=FULL_NODES[:-1])
    preempting.add_argument("--decisions", type=int, default=20, help="decisions at each size, for each request")
    preempting.add_argument("--budgeted", type=float, default=0.0, help="share of the pods that a budget covers")
    preempting.add_argument("-o", "--output", choices=("table", "json"), default="table")
    memory = commands.add_parser("memory", help="measure the memory of a ledger, in this process")
    memory.add_argument("--nodes", type=int, default=5000)
    memory.add_argument("--holders", type=int, default=20_000)
    watching = commands.add_parser("watches", help="measure Kopf's watches beside the plain one, without a cluster")
    watching.add_argument("--nodes", type=int, default=FULL_NODES[-1])
    watching.add_argument("--events", type=int, default=10_000, help="changes of each kind of objects")
    watching.add_argument("-o", "--output", choices=("table", "json"), default="table")
    soaking = commands.add_parser("soak", help="measure the operator's memory over many assignments")
    soaking.add_argument("--nodes", type=int, default=100)
    soaking.add_argument("--assignments", type=int, default=100_000, help="at least")
    soaking.add_argument("--pods", type=int, default=3000, help="pods in a round, if they fit")
    return parser


def _run(arguments: argparse.Namespace) -> None:
    full = arguments.full
    plan = Plan(
        nodes=arguments.nodes or (FULL_NODES if full else QUICK_NODES),
        pods=arguments.pods or (FULL_PODS if full else QUICK_PODS),
        rounds=arguments.rounds or (FULL_ROUNDS if full else QUICK_ROUNDS),
        cases=arguments.only,
    )
    kept = arguments.save or KEPT / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    run = begin()
    try:
        asyncio.run(carry_out(plan, run))
    finally:
        if run.rows:
            run.save(kept)
            print(f"kept in {kept}", file=sys.stderr)
    if arguments.output == "json":
        sys.stdout.write(run.json() + "\n")
    else:
        show(run)


async def _measure_filters(arguments: argparse.Namespace) -> None:
    sizes, as_json = Sizes(arguments.nodes, arguments.filters, arguments.policy), arguments.output == "json"
    if arguments.quotas:
        await measure_quotas(sizes, arguments.quotas, as_json)
    else:
        await measure_filters(sizes, arguments.profile, as_json)


def main() -> int:
    """Parse the arguments and run; return the exit status."""
    arguments = _parser().parse_args()
    try:
        match arguments.command:
            case "compare":
                show_comparison(Run.load(arguments.first), Run.load(arguments.second), arguments.all)
            case "show":
                show(Run.load(arguments.run))
            case "filter":
                asyncio.run(_measure_filters(arguments))
            case "preempt":
                measure_preemption(arguments.nodes, arguments.decisions, arguments.budgeted, arguments.output == "json")
            case "memory":
                measure_memory(arguments.nodes, arguments.holders)
            case "watches":
                measure_watches(arguments.nodes, arguments.events, arguments.output == "json")
            case "soak":
                asyncio.run(soak(arguments.nodes, arguments.assignments, arguments.pods))
            case _:
                _run(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (ControlPlaneError, GpuledgerError, TimeoutError, ValueError, OSError, ExceptionGroup) as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):  # of several requests at once; the first tells enough
            cause = cause.exceptions[0]
        print(f"error: {type(cause).__name__}: {cause}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
