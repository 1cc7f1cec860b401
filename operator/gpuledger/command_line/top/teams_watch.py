"""`top --by ... --watch`: reads again every few seconds, and shows what has changed."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from gpuledger.command_line.output import utc_now, write
from gpuledger.command_line.top.live import Screen
from gpuledger.command_line.top.teams import Teams
from gpuledger.model.errors import Unreachable
from gpuledger.reports.tables import Terminal

PAUSE_S = 5.0
"""Between two readings: each is of all cards, and of the pods concerned."""


ENDED = 130
"""Exit status after Ctrl-C."""


def watch_teams(read: Callable[[], Teams], terminal: Terminal, output: str) -> int:
    """Show a view until Ctrl-C; return the exit status. Raises what the first reading raises.

    On a terminal one picture that changes; anywhere else it is printed again when it has changed.
    """
    with contextlib.suppress(KeyboardInterrupt):
        teams = read()
        if sys.stdout.isatty() and output in ("table", "wide"):
            with Screen(sys.stdout) as screen:
                _draw(screen, read, teams, terminal, output == "wide")
        _append(read, teams, terminal, output)
    return ENDED


def _draw(screen: Screen, read: Callable[[], Teams], teams: Teams, terminal: Terminal, wide: bool) -> None:
    trouble = ""
    while True:
        size = shutil.get_terminal_size()
        shown = replace(terminal, width=size.columns)
        head = f"gpuledger top --by {teams.by}  {utc_now().astimezone():%H:%M:%S}"
        notes = [*([f"no news: {trouble}"] if trouble else []), *teams.notes]
        lines = [head, *(shown.paint(note[: size.columns], "yellow") for note in notes), "", *teams.table(shown, wide)]
        screen.show(lines[: size.lines])
        time.sleep(PAUSE_S)
        teams, trouble = _again(read, teams)


def _append(read: Callable[[], Teams], teams: Teams, terminal: Terminal, output: str) -> None:
    before: list[str] = []
    told = ""
    while True:
        lines = _lines(teams, terminal, output)
        if lines != before:
            write(lines)
            before = lines
        time.sleep(PAUSE_S)
        teams, trouble = _again(read, teams)
        if trouble and trouble != told:
            sys.stderr.write(f"no news: {trouble}\n")
        told = trouble


def _again(read: Callable[[], Teams], teams: Teams) -> tuple[Teams, str]:
    """Return a new reading; the one before, and what is wrong, while there is none."""
    try:
        return read(), ""
    except Unreachable as error:
        return teams, " ".join(str(error).split())


def _lines(teams: Teams, terminal: Terminal, output: str) -> list[str]:
    """Return the table, or the data as one line of JSON or one YAML document."""
    if output in ("table", "wide"):
        return teams.table(terminal, output == "wide")
    if output == "json":
        import orjson

        return [orjson.dumps(teams.json()).decode()]
    import yaml

    return ["---", *yaml.safe_dump(teams.json(), sort_keys=False).splitlines()]
