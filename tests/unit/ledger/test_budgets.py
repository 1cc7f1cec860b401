"""What is spent of a budget is what was held in its period, and it is known beforehand when it will be spent."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import times
from gpuledger.ledger.budgets import Piece, Spending, spending
from gpuledger.model.usage import MILLION, MS_PER_HOUR, Budget, Period

NOW = datetime(2026, 11, 18, 15, 30, tzinfo=UTC)  # a Wednesday

moments = st.timedeltas(timedelta(0), timedelta(days=45)).map(lambda ago: NOW - ago)
MODELS = ("A100-SXM4-40GB", "NVIDIA T4")


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    since = draw(moments)
    until = draw(st.none() | st.datetimes(since.replace(tzinfo=None), NOW.replace(tzinfo=None)))
    part = draw(st.integers(1, MILLION))
    model = draw(st.sampled_from(MODELS))
    return Piece("team", "k", model, since, until.replace(tzinfo=UTC) if until else None, part)


@st.composite
def budgets(draw: st.DrawFn) -> Budget:
    model = draw(st.sampled_from(["", "a100", "t4", "h100"]))
    return Budget("gpus", "key", draw(st.sampled_from(Period)), draw(st.integers(0, 3000)), model)


def naive_ms(budget: Budget, all_pieces: list[Piece], at: datetime) -> float:
    """Return what was held of such cards since the period of that moment began."""
    begin = datetime.combine(budget.period.begin(at.date()), datetime.min.time(), UTC)
    held = 0.0
    for each in all_pieces:
        if budget.model in each.model.lower():
            seconds = ((each.until or at) - max(each.since, begin)).total_seconds()
            held += max(0.0, seconds) * 1000 * each.part / MILLION
    return held


@given(budgets(), st.lists(pieces(), max_size=8))
def test_what_is_spent_is_what_was_held_since_the_period_began(budget: Budget, held: list[Piece]) -> None:
    found = spending(budget, NOW, {}, held)
    assert found.spent_ms == pytest.approx(naive_ms(budget, held, NOW), abs=len(held) + 1)


@given(budgets(), st.lists(pieces(), max_size=8))
def test_until_the_moment_that_is_foretold_nothing_changes_that_is_shown_and_then_something_does(
    budget: Budget, held: list[Piece]
) -> None:
    now = spending(budget, NOW, {}, held)
    in_s = now.changes_in_s()
    assert in_s > 0

    def shown(after_s: float) -> tuple[int, bool, bool, date]:
        at = spending(budget, NOW + timedelta(seconds=after_s), {}, held)
        return at.hours_shown, at.is_low, at.is_spent, at.end

    if in_s > 1:
        assert shown(in_s - 1) == shown(0)
    assert shown(in_s + 1 + 60 * 60 * 24 * (in_s == float("inf"))) != shown(0) or not now.cards


@given(budgets(), st.lists(pieces(), max_size=4), st.integers(0, 10**9))
def test_records_count_from_the_day_on_at_which_the_period_began(budget: Budget, held: list[Piece], ms: int) -> None:
    first = budget.period.begin(NOW.date())
    model = f"X {budget.model}"
    recorded = {
        (first.isoformat(), model): ms,
        ((first - timedelta(days=1)).isoformat(), model): 7,
        (first.isoformat(), "another"): 0 if not budget.model else 11,
    }
    without = spending(budget, NOW, {}, held)
    assert spending(budget, NOW, recorded, held).spent_ms == without.spent_ms + ms


def test_periods_are_those_of_the_calendar() -> None:
    day = date(2026, 11, 18)
    assert (Period.DAY.begin(day), Period.DAY.end(day)) == (day, date(2026, 11, 19))
    assert (Period.WEEK.begin(day), Period.WEEK.end(day)) == (date(2026, 11, 16), date(2026, 11, 23))
    assert (Period.MONTH.begin(day), Period.MONTH.end(day)) == (date(2026, 11, 1), date(2026, 12, 1))
    for number in range(times(400, 4000)):
        each = date(2026, 1, 1) + timedelta(days=number)
        for period in Period:
            assert period.begin(each) <= each < period.end(each)
            assert period.begin(period.end(each)) == period.end(each)
            assert (period.end(each) - period.begin(each)).days <= period.days


def test_a_budget_that_is_overspent_shows_that() -> None:
    budget = Budget("gpus", "key", Period.DAY, 10)
    assert Spending(budget, 14 * MS_PER_HOUR, 0, NOW, NOW.date()).hours_shown == 14
    assert Spending(budget, 10 * MS_PER_HOUR - 1, 0, NOW, NOW.date()).hours_shown == 9
