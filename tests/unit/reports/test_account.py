"""Reports add up: each row, all rows, and what they cost."""

from datetime import UTC, date, datetime, timedelta

import pytest

from gpuledger.formats.custom_resource.usage import line_json
from gpuledger.model.errors import BadInput
from gpuledger.model.usage import Held, Line
from gpuledger.reports.account import Days, accounts, existed_ms, in_all

NOVEMBER = Days(date(2026, 11, 1), date(2026, 12, 1))
HOUR = Held(card_ms=3_600_000, memory_mib_s=40 * 1024 * 3600, core_percent_s=50 * 3600, shares=1, waited_s=1800)
LINES = [
    (namespace, line_json(line, held))
    for namespace, line, held in [
        ("team-a", Line("2026-11-03", "A100", "node-1", "prod", "Job/train"), HOUR),
        ("team-a", Line("2026-11-04", "H100", "node-2", "", "Deployment/chat"), HOUR),
        ("team-a", Line("2026-10-31", "A100", "node-1", "prod", "Job/train"), HOUR),
        ("team-b", Line("2026-11-30", "A100", "", "prod", ""), HOUR),
        ("team-b", Line("2026-12-01", "A100", "", "prod", ""), HOUR),
    ]
]


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
    found = accounts(LINES, by, NOVEMBER)
    assert {name: account.held.shares for name, account in found.items()} == rows
    assert in_all(found).held == HOUR + HOUR + HOUR


def test_sums_are_in_hours() -> None:
    found = accounts(LINES[:1], "namespace", NOVEMBER)["team-a"].as_json()
    assert found == {"cardHours": 1.0, "memoryGiBHours": 40.0, "coreHours": 0.5, "shares": 1, "waitedHours": 0.5}


def test_each_model_has_its_price() -> None:
    found = accounts(LINES, "namespace", NOVEMBER, {"A100": 2.0, "H100": 5.0})
    assert [account.cost for account in found.values()] == [7.0, 2.0]
    assert in_all(found).as_json()["cost"] == 9.0


def test_a_model_without_a_price_is_named() -> None:
    with pytest.raises(BadInput, match="'H100'"):
        accounts(LINES, "namespace", NOVEMBER, {"A100": 2.0})


def test_cards_existed_since_they_came_and_until_now() -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    created = [now - timedelta(hours=1), now - timedelta(days=100)]
    november_so_far_h = 29 * 24 + 12
    assert existed_ms(created, NOVEMBER, now) == (1 + november_so_far_h) * 3_600_000
    assert existed_ms(created, Days(date(2026, 9, 1), date(2026, 9, 2)), now) == 24 * 3_600_000
