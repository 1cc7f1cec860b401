"""What takes long is run side by side, shows how far it is, and fails with what is wrong."""

import os
from pathlib import Path

import pytest

from build_steps import Builder, BuildError, Command


@pytest.fixture
def builder() -> Builder:
    return Builder("thing")


def shell(directory: Path, script: str, lines: int = 0) -> Command:
    return Command(["sh", "-c", script], directory, os.environ, lines=lines)


def waiting_for(own: str, other: str) -> str:
    """Return a script that ends only if the one of `other` runs meanwhile."""
    return f"touch {own}; until [ -e {other} ]; do sleep 0.01; done"


def test_commands_run_side_by_side(builder: Builder, tmp_path: Path) -> None:
    commands = [shell(tmp_path, waiting_for("a", "b")), shell(tmp_path, waiting_for("b", "a"))]
    builder.run_together("work", "now", commands, at_once=2)


def test_no_more_of_them_run_at_once_than_may(builder: Builder, tmp_path: Path) -> None:
    alone = "mkdir running || exit 7; sleep 0.05; rmdir running"
    builder.run_together("work", "now", [shell(tmp_path, alone)] * 4, at_once=1)


def test_a_failure_is_told_by_what_the_command_printed_and_ends_the_others(builder: Builder, tmp_path: Path) -> None:
    endless = "echo $$ > pid; while :; do sleep 0.01; done"
    failing = "until [ -s pid ]; do sleep 0.01; done; echo k8s.io/api/core/v1; echo x.go:7: no such thing; exit 3"
    with pytest.raises(BuildError) as caught:
        builder.run_together("work", "now", [shell(tmp_path, endless), shell(tmp_path, failing, lines=9)], at_once=2)
    assert "work failed (exit status 3)" in str(caught.value)
    assert "x.go:7: no such thing" in str(caught.value)
    assert "k8s.io/api/core/v1" not in str(caught.value)  # it is progress
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_without_a_terminal_each_quarter_is_told_once(
    builder: Builder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with builder._progress("compiling", 100) as show:
        for lines in (3, 24, 25, 26, 80, 81, 100, 100):
            show(lines, 61.0)
    told = capsys.readouterr().err.splitlines()
    assert told == [f"thing: compiling: {part}% of 100 packages after 1 min 01 s" for part in (25, 80)]


def test_what_prints_an_unknown_number_of_lines_has_a_beginning_and_an_end(
    builder: Builder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder.run(["sh", "-c", "echo a; echo b"], "work", "1 s", tmp_path, os.environ)
    assert [line.rpartition(" in ")[0] or line for line in capsys.readouterr().err.splitlines()] == [
        "thing: work (1 s)",
        "thing: work: done",
    ]
