"""Reports add up: each row, each day, all rows, and what they cost."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.custom_resource.usage import AMOUNTS, row_of
from gpuledger.model.errors import BadInput
from gpuledger.model.usage import Held, Line
from gpuledger.reports import account
from gpuledger.reports.account import WAYS, Days, Question, Tally, Values, days_asked, existed_ms, in_all

NOVEMBER = Days(date(2026, 11, 1), date(2026, 12, 1))
TODAY = date(2026, 12, 2)
NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
HOUR = Held(card_ms=3_600_000, memory_mib_s=40 * 1024 * 3600, core_percent_s=50 * 3600, shares=1, waited_s=1800)
LINES = [
    (namespace, row_of(line, held))
    for namespace, line, held in [
        ("team-a", Line("2026-11-03", "A100", "node-1", "prod", "Job/train"), HOUR),
        ("team-a", Line("2026-11-04", "H100", "node-2", "", "Deployment/chat"), HOUR),
        ("team-a", Line("2026-10-31", "A100", "node-1", "prod", "Job/train"), HOUR),
        ("team-b", Line("2026-11-30", "A100", "", "prod", ""), HOUR),
        ("team-b", Line("2026-12-01", "A100", "", "prod", ""), HOUR),
    ]
]


def a_tally(
    by: str,
    prices: dict[str, float] | None = None,
    lines: Iterable[tuple[str, Values]] = LINES,
    *,
    bounded: bool = False,
) -> Tally:
    tally = Tally(Question(by, NOVEMBER), NOW, prices, bounded=bounded)
    for namespace, line in lines:
        tally.add_lines(namespace, [line])
    return tally


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("namespace", {"team-a": 2, "team-b": 1}),
        ("queue", {"prod": 2, "(no queue)": 1}),
        ("model", {"A100": 2, "H100": 1}),
        ("owner", {"team-a: Deployment/chat": 1, "team-a: Job/train": 1, "team-b: (no owner)": 1}),
        ("node", {"(others)": 1, "node-1": 1, "node-2": 1}),
        ("day", {"2026-11-03": 1, "2026-11-04": 1, "2026-11-30": 1}),
    ],
)
def test_what_was_held_in_the_days_is_added_up(by: str, rows: dict[str, int]) -> None:
    found = a_tally(by).accounts()
    assert {name: each.held.shares for name, each in found.items()} == rows
    assert in_all(found).held == HOUR + HOUR + HOUR


some_lines = st.builds(
    row_of,
    st.builds(
        Line,
        st.sampled_from(["2026-10-31", "2026-11-03", "2026-11-04"]),
        *[st.sampled_from(["", "a", "b"])] * 5,
    ),
    st.builds(Held, *[st.integers(0, 10**12)] * 7),
)


@given(st.lists(some_lines, max_size=20), st.sampled_from(list(WAYS)), st.booleans(), st.integers(1, 3))
def test_a_record_counts_as_its_lines_do_one_by_one(lines: Sequence[Values], by: str, priced: bool, many: int) -> None:
    prices = {"": 1.0, "a": 2.0, "b": 4.0} if priced else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account, "MANY_LINES", many)
        together, alone = a_tally(by, prices, ()), a_tally(by, prices, [("team-a", line) for line in lines])
        together.add_lines("team-a", lines)
        assert together.report([]) == alone.report([])
    assert in_all(together.accounts()).held.shares == sum(
        int(line[AMOUNTS][3]) for line in lines if line[0] > "2026-11-01"
    )


def test_sums_are_in_hours() -> None:
    found = a_tally("namespace", lines=LINES[:1]).accounts()["team-a"].as_json()
    assert found == {
        "cardHours": 1.0,
        "memoryGiBHours": 40.0,
        "coreHours": 0.5,
        "shares": 1,
        "waitedHours": 0.5,
        "idleHours": 0.0,
        "wastedHours": 0.0,
    }


def test_each_model_has_its_price() -> None:
    found = a_tally("namespace", {"A100": 2.0, "H100": 5.0}).accounts()
    assert [each.cost for each in found.values()] == [7.0, 2.0]
    assert in_all(found).as_json()["cost"] == 9.0


def test_a_model_without_a_price_is_named() -> None:
    with pytest.raises(BadInput, match="'H100'"):
        a_tally("namespace", {"A100": 2.0}).accounts()


def test_a_report_tells_the_largest_rows_by_day_and_all_of_each_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "LARGEST", 1)
    assert a_tally("namespace").report([])["days"] == [
        {"day": "2026-11-03", "cardHours": 1.0, "rows": {"team-a": 1.0}},
        {"day": "2026-11-04", "cardHours": 1.0, "rows": {"team-a": 1.0}},
        {"day": "2026-11-30", "cardHours": 1.0, "rows": {}},
    ]


@pytest.mark.parametrize(("by", "others"), [("owner", "team-a: (others)"), ("queue", "(others)")])
def test_names_that_users_make_up_share_a_row_beyond_a_number(
    by: str, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "MOST_ROWS_OF_NAMESPACE", 3)
    made_up = [("team-a", row_of(Line("2026-11-03", "A", "n", f"q{n}", f"Job/{n}"), HOUR)) for n in range(50)]
    first = [("team-b", row_of(Line("2026-11-03", "A", "n", "prod", "Job/own"), HOUR))]
    found = a_tally(by, lines=made_up + first, bounded=True).accounts()
    assert found[others].held.shares == 47
    assert sum(each.held.shares for each in found.values()) == 51
    assert len(found) == 5, "another namespace has its own row"
    assert len(a_tally(by, lines=made_up, bounded=False).accounts()) == 50


@pytest.mark.parametrize(
    ("names", "admitted"),
    [((), ["team-a", "team-b"]), (("team-a",), ["team-a"]), (("team-*",), ["team-a", "team-b"]), (("team",), [])],
)
def test_namespaces_are_named_in_full_or_by_how_they_begin(names: Sequence[str], admitted: list[str]) -> None:
    asked = Question("namespace", NOVEMBER, tuple(names))
    assert [name for name in ("team-a", "team-b") if asked.admits(name)] == admitted


def test_cards_existed_since_they_came_and_until_now() -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    created = [now - timedelta(hours=1), now - timedelta(days=100)]
    november_so_far_h = 29 * 24 + 12
    assert existed_ms(created, NOVEMBER, now) == (1 + november_so_far_h) * 3_600_000
    assert existed_ms(created, Days(date(2026, 9, 1), date(2026, 9, 2)), now) == 24 * 3_600_000


@pytest.mark.parametrize(
    ("since", "until", "days"),
    [
        (None, None, Days(date(2026, 11, 2), date(2026, 12, 3))),
        ("7d", None, Days(date(2026, 11, 25), date(2026, 12, 3))),
        ("2026-11-01", "2026-12-01", NOVEMBER),
        ("0d", None, Days(date(2026, 12, 2), date(2026, 12, 3))),
    ],
)
def test_days_are_asked_for_by_their_dates_or_as_so_many_ago(since: str | None, until: str | None, days: Days) -> None:
    assert days_asked(since, until, TODAY) == days


@pytest.mark.parametrize(
    ("since", "until", "complaint"),
    [
        ("yesterday", None, "since takes a day, such as 2026-11-01"),
        ("2026-13-01", None, "since takes a day"),
        ("30d", "soon", "until takes a day"),
        ("2026-11-03", "2026-11-03", "has to be after 2026-11-03"),
        ("2026-12-03", None, "still to come"),
        ("9999-12-31", None, "still to come"),
        ("367d", None, "more than 366 days ago"),
        ("9999d", None, "more than 366 days ago"),
        ("0001-01-01", None, "more than 366 days ago"),
    ],
)
def test_days_that_can_not_be_meant_are_refused_with_what_to_write(
    since: str, until: str | None, complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        days_asked(since, until, TODAY)


def test_records_of_shares_that_ended_later_are_read_too_and_none_beyond_the_time_that_there_is() -> None:
    days = Days(date(2026, 11, 29), date(2026, 11, 30))
    assert days.until_today(TODAY) == ["2026-11-29"]
    assert days.of_records(TODAY) == ["2026-11-29", "2026-11-30", "2026-12-01", "2026-12-02", "2026-12-03"]
    assert Days(days.begin, date.max).until_today(days.begin) == ["2026-11-29"]
