"""What holds for all tests: Hypothesis' profile, the run's seed, which tests are long, and which run side by side."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from build_steps import cache_directory
from effort import LONG, RUN_SEED, times
from side_by_side import group_of, in_order

SAID = "said"

settings.register_profile(
    "gpuledger",
    max_examples=times(50, 200),  # others in each run
    deadline=None,  # a busy machine must not fail a property
    database=DirectoryBasedExampleDatabase(cache_directory().parent / "hypothesis"),  # a failure is tried again first
    print_blob=True,
)
settings.load_profile("gpuledger")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads it
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(RUN_SEED)


def pytest_report_header() -> str:
    return f"seed: {RUN_SEED}; `make test SEED={RUN_SEED}` makes the same random choices"


@pytest.hookimpl(trylast=True)  # after the conftest.py of tests/cluster and tests/node have set their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is long, and put the groups of tests in order."""
    long = [] if LONG else [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    items.sort(key=lambda item: in_order(group_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let pytest-xdist 3.8 give whole groups to its workers; with pytest 9.2, its own marker for that does nothing."""
    from xdist.scheduler import LoadScopeScheduling  # only there on the side that hands out the work

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return what keeps a sentence, a measurement say, for the end of the run, whether or not the test passes."""
    return lambda sentence: record_property(SAID, sentence)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have measured, passed or not."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, ())]
    said = [sentence for report in reports for name, sentence in report.user_properties if name == SAID]
    if said:
        terminalreporter.section("measured")
        for sentence in said:
            terminalreporter.write_line(str(sentence))


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
