"""The time of shares adds up: over days, over lines, and whatever names users choose."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_card, a_holder, a_share
from gpuledger.formats.custom_resource.usage import csv_of
from gpuledger.ledger.usage import add_up, ended_share, lines_of, wasted_after, wasted_ms, wasted_part
from gpuledger.model.card import Amounts
from gpuledger.model.share import Holder
from gpuledger.model.usage import Charge, EndedShare, Held, Line, Wasted, total_of

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
CARD = a_card(0)


def ended(since: datetime = NOON, hours: float = 1.0, part: int = 500_000, **charge: str) -> EndedShare:
    return EndedShare("a.uid-a", "team", Charge(**charge), since, since + timedelta(hours=hours), part, 1000, 25, 7)


def lines(*shares: EndedShare, node_name: str = "node-a") -> dict[Line, Held]:
    record: dict[Line, Held] = {}
    for share in shares:
        add_up(record, lines_of(share, "A100", node_name))
    return record


def test_half_a_card_for_an_hour_is_half_an_hour() -> None:
    assert lines(ended(owner="Job/train")) == {
        Line("2026-11-30", "A100", "node-a", owner="Job/train"): Held(1_800_000, 3_600_000, 90_000, 1, 7)
    }


def test_what_was_held_over_midnight_is_in_both_days_and_began_in_the_first() -> None:
    found = lines(ended(hours=36))
    assert [(line.day, held.card_ms, held.shares, held.waited_s) for line, held in sorted(found.items())] == [
        ("2026-11-30", 21_600_000, 1, 7),
        ("2026-12-01", 43_200_000, 0, 0),
    ]


@given(st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)), st.floats(0.0001, 1000), st.integers(1, 1_000_000))
def test_days_add_up_to_the_whole_time(since: datetime, hours: float, part: int) -> None:
    share = ended(since.replace(tzinfo=UTC), hours, part)
    whole_ms = (share.until - share.since) // timedelta(milliseconds=1)
    assert total_of(lines(share)).card_ms == part * whole_ms // 1_000_000


def test_a_share_is_what_its_holder_has_of_the_card() -> None:
    holder = replace(a_holder("a", a_share(CARD)), since="2026-11-30T12:00:00.250Z", waited_s=3, attempt="f00")
    found = ended_share(holder, CARD, NOON + timedelta(seconds=1))
    assert found is not None
    assert (found.key, found.since.microsecond, found.waited_s) == (f"f00.{holder.pod.uid}", 250_000, 3)
    assert found.part == max(
        round(1e6 * holder.share.amounts.memory_mib / CARD.capacity.memory_mib),
        round(1e6 * holder.share.amounts.cores / CARD.capacity.cores),
    )


def test_what_is_not_charged_and_what_has_not_lasted_has_no_time() -> None:
    reserved = a_holder("a", a_share(CARD))
    just_now = replace(reserved, since="2026-11-30T12:00:00.000Z")
    assert ended_share(reserved, CARD, NOON) is None
    assert ended_share(just_now, CARD, NOON) is None


def test_a_clock_that_was_put_back_makes_no_negative_time() -> None:
    holder = replace(a_holder("a", a_share(CARD)), since="2026-11-30T13:00:00.000Z")
    assert ended_share(holder, CARD, NOON) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 5)), max_size=80), st.integers(1, 20))
def test_whatever_names_users_choose_a_record_stays_short_and_its_sum_right(
    chosen: list[tuple[int, int, int]], most: int
) -> None:
    record: dict[Line, Held] = {}
    for node, owner, queue in chosen:
        add_up(record, lines_of(ended(owner=f"Job/{owner}", queue=f"q{queue}"), "A100", f"node-{node}"), most)
    assert total_of(record).card_ms == 1_800_000 * len(chosen)
    assert len(record) <= most + 1


def test_of_many_nodes_the_owners_stay_known() -> None:
    record: dict[Line, Held] = {}
    for number in range(100):
        add_up(record, lines_of(ended(owner="Job/a" if number % 2 else "Job/b"), "A100", f"node-{number}"), most=10)
    assert {line.owner for line in record} == {"Job/a", "Job/b"}
    assert len(record) <= 10


names = st.sampled_from([letter * 128 for letter in "abcdefghij"]) | st.text(max_size=128)


@given(st.lists(st.tuples(names, names, names, st.sampled_from(["A100", "T4"]), st.integers(0, 9)), max_size=60))
def test_whatever_names_users_choose_a_record_stays_in_its_bound_and_its_sum_right(
    held: list[tuple[str, str, str, str, int]],
) -> None:
    record: dict[Line, Held] = {}
    for owner, queue, priority, model, day in held:
        line = Line(f"2026-11-0{day}", model, f"node-{owner[:3]}", queue, owner, priority)
        add_up(record, [(line, Held(card_ms=1))], most=10)
    assert total_of(record).card_ms == len(held)
    coarse = {(line.day, line.model) for line in record}
    assert len(record) <= 10 + len(coarse)


def test_the_largest_record_that_users_names_can_make_is_far_from_etcds_limit() -> None:
    """Etcd takes objects of 1.5 MiB; JSON of a name may have six characters for each."""
    record: dict[Line, Held] = {}
    for number in range(3_000):
        name = f"{number:05}" + "\u0001" * 123
        amounts = Held(10**15, 10**15, 10**15, 10**9, 10**9, 10**15)
        add_up(record, [(Line("2026-11-30", "m" * 64, "n" * 253, name, name, name), amounts)])
    assert len(orjson.dumps(csv_of(record))) < 1_200_000


def holding(*amounts: tuple[int, int], since: str = "2026-11-30T12:00:00.000Z") -> list[Holder]:
    """Return holders that are charged, each with so many MiB and percent of the cores."""
    shares = [replace(a_share(CARD), amounts=Amounts(memory, cores, 1)) for memory, cores in amounts]
    return [replace(a_holder(f"p{number}", share), since=since) for number, share in enumerate(shares)]


@pytest.mark.parametrize(
    ("holders", "part"),
    [
        ([], 0),
        ([(8000, 50)], 0),
        ([(8000, 50), (8000, 50)], 0),
        ([(8000, 25), (8000, 25)], 0.5),  # no memory is left
        ([(4000, 50), (4000, 50)], 0.5),  # no cores are
        ([(160, 1)] * 10, 0.9),  # no slot is
        ([(160, 0)] * 10, 0.9),
        ([(8000, 0), (8000, 25)], 0),  # of the cores that are left, one has as many as there are
    ],
)
def test_what_is_left_of_a_card_is_wasted_when_nobody_can_have_it(holders: list[tuple[int, int]], part: float) -> None:
    assert wasted_part(holding(*holders), CARD) == pytest.approx(part)


def test_who_has_a_card_alone_wastes_nothing_of_it() -> None:
    (holder,) = holding((16_000, 0))
    assert wasted_part([replace(holder, share=replace(holder.share, exclusive=True))], CARD) == 0


def test_what_is_wasted_is_shared_out_by_what_the_holders_have() -> None:
    holders, hour_later = holding((12_000, 25), (4_000, 25)), NOON + timedelta(hours=1)
    so_far_ms = wasted_ms(Wasted(NOON, 0), holders, CARD, hour_later)
    found = [ended_share(holder, CARD, hour_later, so_far_ms=so_far_ms) for holder in holders]
    assert [each.wasted_ms for each in found if each] == [1_350_000, 450_000], "half a card for an hour"


def test_a_card_says_what_is_wasted_only_while_it_is_and_until_nobody_has_it() -> None:
    full, half, later = holding((8000, 25), (8000, 25)), holding((8000, 25)), NOON + timedelta(minutes=1)
    assert wasted_after(None, 0, half, CARD, NOON) is None
    begun = wasted_after(None, 0, full, CARD, NOON)
    assert begun == Wasted(NOON, 0)
    kept = wasted_after(begun, wasted_ms(begun, full, CARD, later), half, CARD, later)
    assert kept == Wasted(later, 30_000)
    assert wasted_after(kept, 30_000, half, CARD, later + timedelta(hours=1)) is kept, "nothing is to be written"
    assert wasted_after(kept, 30_000, [], CARD, later) is None


def test_what_was_wasted_is_in_the_days_in_which_it_was_held() -> None:
    share = replace(ended(hours=36), wasted_ms=3_600_000)
    found = lines(share)
    assert [held.wasted_card_ms for _, held in sorted(found.items())] == [1_200_000, 2_400_000]


def test_names_that_users_choose_are_on_one_line_of_a_record() -> None:
    ((line, _),) = lines(ended(owner="Job/a\n2026-11-30,b", queue="q\u2028")).items()
    assert (line.owner, line.queue) == ("Job/a?2026-11-30,b", "q?")
