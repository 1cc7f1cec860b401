"""A record's lines are CSV: what is written is read, by other releases too, and the API server checks it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.custom_resource.gpu_usage import LINES_PATTERN
from gpuledger.formats.custom_resource.usage import COLUMNS, RecordName, csv_of, new_record, record, rows_of
from gpuledger.ledger.usage import one_line
from gpuledger.model.errors import BadInput
from gpuledger.model.usage import Held, Line

NAME = RecordName("team-a", "2026-11-30")

amounts = st.integers(0, 10**18)
words = st.text(max_size=20).map(one_line)
lines = st.dictionaries(
    st.builds(Line, st.dates().map(str), words, words, words, words, words),
    st.builds(Held, amounts, amounts, amounts, amounts, amounts, amounts, amounts),
    max_size=5,
)


def read(text: str) -> dict[Line, Held]:
    created = new_record(NAME)
    metadata = created["metadata"] | {"resourceVersion": "7"}
    return dict(record({**created, "metadata": metadata, "status": {"lines": text}}).lines)


@given(lines)
def test_what_was_written_is_read_and_accepted(held: dict[Line, Held]) -> None:
    assert read(csv_of(held)) == held
    assert re.search(LINES_PATTERN, csv_of(held))


def test_columns_of_another_release_are_left_out_and_those_that_it_lacks_are_empty() -> None:
    text = "day,rack,owner,shares,joules\n2026-11-30,r1,Job/a,2,900\n"
    assert read(text) == {Line("2026-11-30", owner="Job/a"): Held(shares=2)}


def test_lines_that_differ_in_what_this_release_does_not_know_are_one() -> None:
    text = "day,rack,shares\n2026-11-30,r1,2\n2026-11-30,r2,3\n"
    assert read(text) == {Line("2026-11-30"): Held(shares=5)}


@pytest.mark.parametrize(
    "text", [",".join(COLUMNS) + '\n2026-11-30,"open\n', "day,shares\n2026-11-30\n", "day,shares\n2026-11-30,many\n"]
)
def test_what_is_no_such_csv_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"GPUUsage team-a\.2026-11-30 can't be read"):
        read(text)


def test_a_record_without_lines_has_none() -> None:
    assert list(rows_of("")) == []


@pytest.mark.parametrize(
    "text",
    ["", "shares\n2\n", "day,shares\n2026-11-30,-2\n", "day,shares\n2026-11-30,2", "day,shares\nyesterday,2\n"],
)
def test_the_definition_takes_days_and_whole_numbers_only(text: str) -> None:
    assert not re.search(LINES_PATTERN, text)
