"""The counter of held time never goes back, whatever happens to shares between two looks, and agrees with records."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders import a_card, a_holder, a_share
from fakes.objects import GPU, MEMORY
from gpuledger.controller.telemetry.usage_metrics import LAG_S, MOST_QUEUES, Shown, UsageTime
from gpuledger.formats.custom_resource.stored_card import in_milliseconds
from gpuledger.model.share import Pod
from gpuledger.model.usage import Charge
from gpuledger.reports.cards import CardReport
from gpuledger.workflows.accounts import Today

CARD = a_card(0)
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
HALF = {GPU: "1", MEMORY: str(CARD.capacity.memory_mib // 2)}
Json = dict[str, Any]


def values(usage: UsageTime) -> dict[tuple[str, ...], float]:
    """Return labels -> value, as a scrape has them."""
    (family,) = usage.collect()
    return {tuple(sample.labels.values()): sample.value for sample in family.samples if sample.name.endswith("_total")}


def total(usage: UsageTime) -> float:
    return sum(values(usage).values())


def a_report(*queues: str, since: datetime = NOON - timedelta(hours=1)) -> CardReport:
    holder = replace(a_holder("a", a_share(CARD)), since=in_milliseconds(since))
    held = [replace(holder, pod=Pod(f"uid-{each}", "team", each, charge=Charge(queue=each))) for each in queues]
    return CardReport(CARD, "Ready", "", tuple(held), 0, 0)


def today(now: datetime = NOON, **card_ms: int) -> Today:
    held = {("team", queue, CARD.model): amount for queue, amount in card_ms.items()}
    return Today(f"{now:%Y-%m-%d}", now, held, lambda ended: False)


def test_what_is_in_records_and_what_runs_are_one_sum() -> None:
    usage = UsageTime(today(prod=5000), Shown())
    report = a_report("prod")
    usage.count(report)
    part = report.holders[0].share.amounts.memory_mib / CARD.capacity.memory_mib
    assert values(usage) == {("team", "prod", CARD.model): pytest.approx(5 + part * (3600 - LAG_S))}


def test_a_share_counts_from_the_day_on_in_which_it_is_looked_at() -> None:
    usage = UsageTime(today(), Shown())
    usage.count(a_report("prod", since=NOON - timedelta(days=3)))
    part = a_share(CARD).amounts.memory_mib / CARD.capacity.memory_mib
    assert total(usage) == pytest.approx(part * (12 * 3600 - LAG_S))


def test_it_never_shows_less_than_before_and_begins_anew_with_a_day() -> None:
    shown = Shown()
    assert total(UsageTime(today(prod=9000), shown)) == 9.0
    assert total(UsageTime(today(prod=8990), shown)) == 9.0
    assert total(UsageTime(today(NOON + timedelta(days=1)), shown)) == 0


def test_before_the_records_have_been_read_nothing_is_shown() -> None:
    usage = UsageTime(None, Shown())
    usage.count(a_report("prod"))
    assert values(usage) == {}


def test_however_many_queues_a_user_makes_up_they_are_few_series() -> None:
    usage = UsageTime(today(), Shown())
    for number in range(200):
        usage.count(a_report(f"q{number}"))
    part = a_share(CARD).amounts.memory_mib / CARD.capacity.memory_mib
    assert len(values(usage)) <= MOST_QUEUES + 1
    assert total(usage) == pytest.approx(200 * part * (3600 - LAG_S))
