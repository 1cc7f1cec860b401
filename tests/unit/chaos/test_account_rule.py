"""An account that is wrong by one share, or by a millisecond, is found."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.account_rule import AccountRule
from chaos.examples import a_card, a_holder, a_pod
from chaos.history import Change

Json = dict[str, Any]

KEY = "f00.uid-a"
SINCE, UNTIL = "2026-11-30T12:00:00.000Z", "2026-11-30T12:00:10.000Z"
HALF_OF_TEN_S = 5_000


def ended(key: str = KEY) -> Json:
    return {"key": key, "namespace": "default", "since": SINCE, "until": UNTIL, "millionths": 500_000}


def card(*keys: str, holders: tuple[Json, ...] = ()) -> Json:
    found = a_card(*holders)
    found["status"]["ended"] = [ended(key) for key in keys]
    return found


def usage(card_ms: int, *keys: str) -> Json:
    entered = [{"key": key, "card": "GPU-1"} for key in keys]
    return {"status": {"lines": f"cardMilliseconds\n{card_ms}\n", "entered": entered}}


class Story:
    """Changes of one card and one record."""

    def __init__(self) -> None:
        self.rule = AccountRule()
        self._objects: dict[str, Json | None] = {}

    def see(self, kind: str, now: Json | None) -> str:
        """Return what is wrong with a change."""
        before, self._objects[kind] = self._objects.get(kind), now
        return self.rule.take(Change(1, 0.0, kind, kind, before, now))


def holder() -> Json:
    return a_holder("uid-a", attempt="f00", since=SINCE)


def test_a_share_that_goes_its_way_is_right() -> None:
    story = Story()
    steps: list[tuple[str, Json]] = [
        ("card", card(holders=(holder(),))),
        ("card", card(KEY)),
        ("usage", usage(HALF_OF_TEN_S, KEY)),
        ("card", card()),
        ("usage", usage(HALF_OF_TEN_S)),
    ]
    assert [story.see(kind, now) for kind, now in steps] == [""] * len(steps)
    assert story.rule.checks == 1


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        ([("card", card(KEY)), ("card", card())], "no record has it"),
        ([("card", card(KEY)), ("usage", usage(HALF_OF_TEN_S, KEY)), ("card", card()), ("card", card(KEY))], "second"),
        ([("usage", usage(HALF_OF_TEN_S, KEY))], "no card has listed"),
        ([("card", card(KEY)), ("usage", usage(HALF_OF_TEN_S - 1, KEY))], "has gained 4999 ms"),
        (
            [("card", card(KEY)), ("usage", usage(HALF_OF_TEN_S, KEY)), ("usage", usage(HALF_OF_TEN_S)),
             ("usage", usage(2 * HALF_OF_TEN_S, KEY))],
            "for the second time",
        ),
        ([("card", card(KEY)), ("usage", usage(HALF_OF_TEN_S))], "has gained 5000 ms by shares that had 0"),
    ],
)  # fmt: skip
def test_what_is_lost_or_there_twice_is_found(steps: list[tuple[str, Json]], wrong: str) -> None:
    story = Story()
    assert wrong in [story.see(kind, now) for kind, now in steps][-1]


def test_what_a_bound_pod_has_had_and_its_card_does_not_list_is_found() -> None:
    story = Story()
    assert story.see("pod", a_pod("uid-a", GPU_1=4000)) == ""
    assert story.see("card", card(holders=(holder(),))) == ""
    assert "does not list what default/pod-uid-a has had" in story.see("card", card())


def test_what_a_pod_has_not_had_need_not_be_listed() -> None:
    story = Story()
    story.see("pod", a_pod("uid-a", node=None))
    story.see("card", card(holders=(holder(),)))
    assert story.see("card", card()) == ""
