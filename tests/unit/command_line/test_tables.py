"""Tables: what stays on a narrow terminal, what is never cut elsewhere, and where colours are."""

import re

import pytest

from gpuledger.command_line.output import bar
from gpuledger.reports.tables import Column, Terminal, table

COLUMNS = [Column("NAME"), Column("SIZE", right=True, spare=1), Column("NOTE", spare=2), Column("WHY", fold=True)]
ROW = ("gpu-node-1", "8", "a note of some length", "no card has 8000 MiB free, and none will have for a while")


def test_nothing_is_cut_where_no_terminal_reads() -> None:
    assert table(Terminal(width=None), COLUMNS, [ROW]) == [
        "NAME         SIZE   NOTE                    WHY",
        "gpu-node-1      8   a note of some length   no card has 8000 MiB free, and none will have for a while",
    ]


@pytest.mark.parametrize("width", range(40, 120, 7))
def test_a_terminal_breaks_no_line(width: int) -> None:
    lines = table(Terminal(width=width), COLUMNS, [ROW])
    assert max(map(len, lines)) <= width


def test_columns_that_matter_less_go_first_and_long_texts_are_folded_whole() -> None:
    lines = table(Terminal(width=40), COLUMNS, [ROW])
    assert lines[0] == "NAME         SIZE   WHY"
    folded = " ".join(line[20:].strip() for line in lines[1:])
    assert folded == ROW[3]


def test_a_terminal_that_is_far_too_narrow_still_gets_names_and_reasons() -> None:
    lines = table(Terminal(width=5), COLUMNS, [ROW])
    assert lines[0].split() == ["NAME", "WHY"]
    assert lines[1].startswith("gpu-node-1   no card")


def test_colours_take_no_room() -> None:
    cells = (("Ready", "green"),), "8", "", ""
    plain, painted = (table(Terminal(colours=colours), COLUMNS, [cells, ROW]) for colours in (False, True))
    assert "\x1b[32mReady\x1b[0m" in painted[1]
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in painted] == plain
    assert "\x1b" not in "".join(plain)


@pytest.mark.parametrize(
    ("used", "capacity", "drawn"),
    [
        (0, 100, "░░░░░░░░░░"),
        (1, 100_000, "▏░░░░░░░░░"),
        (50, 100, "█████░░░░░"),
        (99_999, 100_000, "█████████▉"),
        (100, 100, "██████████"),
        (250, 100, "██████████"),
        (0, 0, "          "),
    ],
)
def test_a_bar_shows_anything_that_is_taken_and_looks_full_only_when_it_is(
    used: int, capacity: int, drawn: str
) -> None:
    assert "".join(text for text, _ in bar(Terminal(), used, capacity, "cyan")) == drawn


def test_more_than_there_is_is_red() -> None:
    assert bar(Terminal(), 101, 100, "cyan")[0][1] == "red"


def test_a_bar_without_unicode_is_as_wide() -> None:
    assert "".join(text for text, _ in bar(Terminal(blocks=False), 57, 100, "cyan")) == "######...."
