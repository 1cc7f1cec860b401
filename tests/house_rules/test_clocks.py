"""No workflow reads the time: who connects them gives them a `Clock`, a test or simulation one of its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

WORKFLOWS = Path(__file__).parents[2] / "operator" / "gpuledger" / "workflows"
READS_TIME = "system_clock.py"

READINGS = {"now", "utcnow", "today", "time"}
"""Attributes that read a clock, of a `datetime`, a `date` or an event loop. Timers are no readings."""


def readings(source: str) -> list[int]:
    """Return the lines of a module that read the time of day, the time of a loop, or anything of `time`."""
    nodes = ast.walk(ast.parse(source))
    return sorted({node.lineno for node in nodes if isinstance(node, ast.stmt | ast.expr) and _reads(node)})


def _reads(node: ast.stmt | ast.expr) -> bool:
    match node:
        case ast.Import(names=names):
            return any(alias.name == "time" for alias in names)
        case ast.ImportFrom(module=module):
            return module == "time"
        case ast.Attribute(attr=attribute):
            return attribute in READINGS
    return False


def _sources() -> Iterator[tuple[str, str]]:
    for file in WORKFLOWS.rglob("*.py"):
        yield str(file.relative_to(WORKFLOWS)), file.read_text()


def test_only_the_system_clock_reads_the_time() -> None:
    assert [name for name, source in _sources() if readings(source)] == [READS_TIME]


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import asyncio, time as clock",
        "from time import monotonic",
        "datetime.now(UTC)",
        "datetime.datetime.now()",
        "date.today()",
        "partial(datetime.now, UTC)",
        "asyncio.get_running_loop().time()",
        "clock = self._loop.time",
    ],
)
def test_every_way_to_read_the_time_is_noticed(line: str) -> None:
    assert readings(line) == [1]


@pytest.mark.parametrize(
    "line", ["loop.call_later(1.0, look)", "timer.when()", "self._clock.now_s()", "asyncio.sleep(1)"]
)
def test_timers_and_the_clock_that_was_given_are_no_readings(line: str) -> None:
    assert readings(line) == []
