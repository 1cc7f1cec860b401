"""Let simulated clusters live, many of them, and tell what went wrong.

    cd tests
    python -m simulation                                  every small scenario, each with one deviation
    python -m simulation --bound 2 --jobs 2               the same with two: minutes to hours
    python -m simulation --seeds 100000 --jobs 2          random lives of random scenarios, and of the small ones
    python -m simulation --scenario 'one pod' --seeds 500 random lives of one scenario
    python -m simulation --scenario 'one pod' --choices 3:2,9:1     one life again, told from its beginning
    python -m simulation --races --bound 2 --jobs 2       every order of each race, with up to two faults
    python -m simulation --race 'bind and bind' --places 0,3,1      one order of a race again

A failure is told with the command that repeats it, after the deviations that it does not need have been left out.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from simulation.explorers import Deviations, Life, Repeat, all_lives, live, random_lives, shortened, story
from simulation.orders import Orders, told
from simulation.prepared import prepared
from simulation.races import BY_NAME as RACES
from simulation.scenarios import BY_NAME, RANDOM, named

SEEDS_AT_ONCE = 200
"""Lives of one task of a worker."""

PARTS = 64
"""Tasks into which the lives of one scenario are divided, where there are many."""

FAILURES_TOLD = 5


@dataclass(frozen=True)
class Task:
    """What one worker does before it reports."""

    scenario: str
    seeds: range | None = None
    bound: int = 0
    part: int = 0
    parts: int = 1

    def lives(self) -> Iterator[Life]:
        """Return the lives of this task."""
        if self.scenario == RANDOM:
            return (life for seed in self.seeds or () for life in random_lives(named(f"{RANDOM} {seed}"), range(3)))
        scenario = named(self.scenario)
        if self.seeds is not None:
            return random_lives(scenario, self.seeds)
        return all_lives(scenario, self.bound, self.part, self.parts)


@dataclass
class Report:
    """What came of some lives."""

    lives: int = 0
    steps: int = 0
    failures: list[tuple[str, Deviations, str]] = field(default_factory=list)
    """Scenario, deviations and kind of violation; the first of each kind in a task."""
    stories: list[str] = field(default_factory=list)
    """Races that went wrong, the first of each."""
    violations: Counter[str] = field(default_factory=Counter)
    """Kind of violation -> how often."""

    def add(self, other: "Report") -> None:
        """Take in another report."""
        self.lives += other.lives
        self.steps += other.steps
        self.failures += other.failures
        self.stories += other.stories
        self.violations += other.violations


def work_on_race(name: str, wrong: int) -> Report:
    """Try every order of a race, with up to so many wrong steps."""
    report = Report()
    with prepared():
        for lived in Orders(RACES[name], wrong):
            report.lives += 1
            report.steps += len(lived.places)
            if lived.violation:
                report.violations[f"{name}: {lived.violation}"] += 1
                if not report.stories:
                    report.stories.append(told(lived.race, lived.places)[1])
    return report


def work(task: Task) -> Report:
    """Do a task."""
    report = Report()
    with prepared():
        for life in task.lives():
            report.lives += 1
            report.steps += len(life.sizes)
            if life.violation:
                report.violations[life.kind] += 1
                if report.violations[life.kind] == 1:
                    report.failures.append((life.scenario.name, life.deviations, life.kind))
    return report


def tasks_of(options: argparse.Namespace) -> list[Task]:
    """Return what is to be done."""
    names = options.scenario or ([*BY_NAME, RANDOM] if options.seeds else list(BY_NAME))
    if not options.seeds:
        parts = PARTS if options.bound > 1 else 1
        return [Task(name, bound=options.bound, part=part, parts=parts) for name in names for part in range(parts)]
    each = max(1, options.seeds // len(names))
    first, last = options.first_seed, options.first_seed + each
    starts = range(first, last, SEEDS_AT_ONCE)
    return [Task(name, range(start, min(last, start + SEEDS_AT_ONCE))) for start in starts for name in names]


def explore(options: argparse.Namespace) -> int:
    """Do everything, show how far it is, and tell what was found."""
    began_s, total = time.monotonic(), Report()
    races = [partial(work_on_race, name, options.bound) for name in options.race or (RACES if options.races else ())]
    tasks = races or [partial(work, task) for task in tasks_of(options)]
    with ProcessPoolExecutor(options.jobs) as workers:
        waiting = iter(tasks)
        running = {workers.submit(task) for task in islice(waiting, options.jobs * 2)}
        while running:
            done = next(as_completed(running))
            running.remove(done)
            total.add(done.result())
            took_s = time.monotonic() - began_s
            if took_s < options.time_s:
                running |= {workers.submit(task) for task in islice(waiting, 1)}
            rate = f"{total.lives / took_s:.0f} per second"
            show(f"{total.lives} lives, {rate}, {len(total.violations)} kinds of failure")
    say(f"{total.lives} lives with {total.steps} choices in {time.monotonic() - began_s:.0f} s")
    tell(total)
    return 1 if total.violations else 0


def tell(report: Report) -> None:
    """Print each kind of failure once, as short as it can be."""
    for kind, count in report.violations.most_common():
        say(f"{count} times: {kind}")
    for text in report.stories[:FAILURES_TOLD]:
        say(f"\n--- {text}")
    seen: set[str] = set()
    with prepared():
        for name, deviations, kind in sorted(report.failures, key=lambda failure: len(failure[1])):
            if kind not in seen and len(seen) < FAILURES_TOLD:
                seen.add(kind)
                life = shortened(live(named(name), Repeat(deviations)))
                say(f"\n--- {life}\n{story(life)}")


def say(text: str) -> None:
    """Print what was found."""
    sys.stdout.write(f"{text}\n")


def show(line: str) -> None:
    """Show progress, where somebody looks."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line} ")
        sys.stderr.flush()


def read_choices(text: str) -> Deviations:
    """Read what `again:` has printed."""
    pairs = [pair.split(":") for pair in text.split(",") if pair != "none"]
    return tuple((int(step), int(choice)) for step, choice in pairs)


def read_places(text: str) -> tuple[int, ...]:
    """Read what `again:` has printed of a race."""
    return tuple(map(int, text.split(",")))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m simulation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--scenario", action="append", help="a scenario's name, or 'random N'; can be repeated")
    parser.add_argument("--bound", type=int, default=1, help="how many deviations each life has at most")
    parser.add_argument("--seeds", type=int, default=0, help="how many random lives, divided among the scenarios")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--time-s", type=float, default=float("inf"), help="begin nothing new after so many seconds")
    parser.add_argument("--choices", type=read_choices, help="the deviations of one life, as a failure names them")
    parser.add_argument("--races", action="store_true", help="every order of each race, with up to --bound faults")
    parser.add_argument("--race", action="append", choices=list(RACES), help="the same for one race; can be repeated")
    parser.add_argument("--places", type=read_places, default=(), help="one order of a race, as a failure names it")
    parser.add_argument("--list", action="store_true", help="name the scenarios and the races")
    options = parser.parse_args()
    if options.list:
        say("\n".join([*BY_NAME, *(f"race: {name}" for name in RACES)]))
        return 0
    if options.places:
        if not options.race:
            parser.error("--places needs the --race that they are of")
        with prepared():
            violation, text = told(RACES[options.race[0]], options.places)
            say(text)
        return 1 if violation else 0
    if options.choices is None:
        return explore(options)
    with prepared():
        life = live(named(options.scenario[0]), Repeat(options.choices))
        say(f"{life}\n{story(life)}")
    return 1 if life.violation else 0


if __name__ == "__main__":
    sys.exit(main())
