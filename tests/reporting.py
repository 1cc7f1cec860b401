"""What a run of the tests tells a person: failures as they happen, what was measured, where the time went.

The process that hands out the work tells all of it; the others only send their reports.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from effort import EFFORT, RUN_SEED

MEASURED = "measured"
"""Name of the property of a report that carries a sentence."""

LINES_AT_ONCE = 8
"""How much of a failure's message is shown when it happens; all of it comes at the end."""

FILES_SHOWN = 40
"""How many files are shown with their time, from the longest on."""

DURATIONS = Path("build") / "durations.json"
"""Seconds of each test that has run in this checkout, by its name: set-up, call and tear-down of its last run."""

TIMES = pytest.StashKey["Times"]()


class Times:
    """How long tests took, by directory and by file, and how busy the machine was meanwhile."""

    def __init__(self) -> None:
        self._begin_s, self._begin_ticks = time.monotonic(), _ticks()
        self._tests = Counter[str]()
        self._took_s: dict[str, float] = defaultdict(float)
        self._files_took_s: dict[str, float] = defaultdict(float)
        self._each_took_s: dict[str, dict[str, float]] = defaultdict(dict)

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase of a test: its set-up, its call or its tear-down."""
        path = report.nodeid.partition("::")[0].removeprefix("tests/")
        group = path.partition("/")[0]
        self._tests[group] += report.when == "call"
        self._took_s[group] += report.duration
        self._files_took_s[path] += report.duration
        self._each_took_s[report.nodeid][str(report.when)] = round(report.duration, 3)

    def write(self, file: Path) -> None:
        """Write how long each test took into a file, beside those that it has already."""
        known = json.loads(file.read_text()) if file.exists() else {}
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(known | self._each_took_s, indent=0))

    def lines(self) -> list[str]:
        """Return a table, the longest first, and a sentence about the machine."""
        rows = sorted(self._took_s.items(), key=lambda row: -row[1])
        wall_s = time.monotonic() - self._begin_s
        table = [f"{'':14}{'tests':>8}{'seconds':>10}"]
        table += [f"{group:14}{self._tests[group]:>8,}{took_s:>10,.0f}" for group, took_s in rows]
        at_once = sum(self._took_s.values()) / wall_s
        busy = [now - before for now, before in zip(_ticks(), self._begin_ticks, strict=True)]
        share = f", {busy[0] / sum(busy):.0%} of them busy" if sum(busy) else ""
        return [*table, f"{wall_s:,.0f} s on {os.cpu_count()} cores{share}; {at_once:.1f} tests under way on average"]

    def lines_of_files(self) -> list[str]:
        """Return a table of those files whose tests took longest together."""
        rows = sorted(self._files_took_s.items(), key=lambda row: -row[1])[:FILES_SHOWN]
        return [f"{took_s:>8,.0f} s  {path}" for path, took_s in rows]


def _ticks() -> tuple[int, int]:
    """Return how long this machine's cores were busy and idle since it was started; zeros if it does not tell."""
    try:
        user, nice, system, idle, wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    except (OSError, ValueError):
        return 0, 0
    return user + nice + system + irq + softirq + steal, idle + wait


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[TIMES] = Times()


def pytest_report_header() -> str:
    return f"seed: {RUN_SEED}; `make {EFFORT} SEED={RUN_SEED}` makes the same random choices"


class Telling:
    """Hooks that need the terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._times = config.stash[TIMES]
        self._terminal = config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._times.add(report)
        if report.failed and self._terminal is not None:
            self._terminal.ensure_newline()
            where = "" if report.when == "call" else f" ({report.when})"
            self._terminal.write_line(f"FAILED{where}: {report.nodeid}", red=True)
            crash = getattr(report.longrepr, "reprcrash", None)
            for line in (crash.message if crash else report.longreprtext).splitlines()[:LINES_AT_ONCE]:
                self._terminal.write_line(f"    {line[:200]}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Tell of a failure when it happens, and not only after a quarter of an hour."""
    if TIMES in session.config.stash:
        session.config.pluginmanager.register(Telling(session.config))


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return what keeps a sentence, a measurement say, for the end of the run, whether or not the test passes."""
    return lambda sentence: record_property(MEASURED, sentence)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what tests have measured, passed or not, and where the time went."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, ())]
    measured = [text for report in reports for name, text in report.user_properties if name == MEASURED]
    if measured:
        terminalreporter.section("measured")
        for sentence in measured:
            terminalreporter.write_line(str(sentence))
    if reports:
        terminalreporter.section("time by directory")
        for line in config.stash[TIMES].lines():
            terminalreporter.write_line(line)
        if EFFORT != "check":
            terminalreporter.section("longest files")
            for line in config.stash[TIMES].lines_of_files():
                terminalreporter.write_line(line)
        config.stash[TIMES].write(config.rootpath / DURATIONS)


@pytest.hookimpl(trylast=True)  # after pytest's own last line
def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line what did not run, and why."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.option.collectonly:
        return
    reasons = Counter(_reason(report) for report in reporter.stats.get("skipped", ()))
    if reasons:
        told = "; ".join(f"{count} tests: {reason}" for reason, count in reasons.most_common())
        reporter.write_line(f"did not run: {told}")


def _reason(report: pytest.TestReport) -> str:
    place_and_reason = report.longrepr
    text = place_and_reason[2] if isinstance(place_and_reason, tuple) else str(place_and_reason)
    return text.removeprefix("Skipped: ")
