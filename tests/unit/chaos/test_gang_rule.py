"""The rule finds Bindings of members whose gang has too few shares in the ledger, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.examples import NODE, a_card, a_holder, a_pod, changed
from chaos.gang_rule import GANG, MINIMUM, GangRule

Json = dict[str, Any]


def a_member(uid: str, minimum: int = 2, gang: str = "train", node: str | None = None) -> Json:
    pod = a_pod(uid, node=node)
    pod["metadata"]["labels"] = {GANG: gang, MINIMUM: str(minimum)}
    return pod


@pytest.fixture
def rule() -> GangRule:
    return GangRule()


def created(rule: GangRule, *pods: Json) -> None:
    for pod in pods:
        assert rule.take(changed("pod", None, pod)) == ""


def on_card(rule: GangRule, before: Json | None, *holders: Json) -> Json:
    card = a_card(*holders)
    assert rule.take(changed("card", before, card)) == ""
    return card


def bound(rule: GangRule, pod: Json) -> str:
    return rule.take(changed("pod", pod, {**pod, "spec": {**pod["spec"], "nodeName": NODE}}))


def test_members_that_are_bound_after_the_shares_of_all_are_in_order(rule: GangRule) -> None:
    pods = [a_member("a"), a_member("b")]
    created(rule, *pods)
    on_card(rule, on_card(rule, None, a_holder("a")), a_holder("a"), a_holder("b"))
    assert [bound(rule, pod) for pod in pods] == ["", ""]
    assert rule.checks == 2


def test_a_binding_before_the_shares_of_the_minimum_is_found(rule: GangRule) -> None:
    created(rule, a_member("a"), a_member("b"))
    on_card(rule, None, a_holder("a"))
    assert bound(rule, a_member("a")) == "default/pod-a of gang train: 1 of 2 have their shares"


def test_a_share_of_another_gang_or_one_that_is_taken_back_does_not_count(rule: GangRule) -> None:
    created(rule, a_member("a"), a_member("b"), a_member("c", gang="other"))
    on_card(rule, None, a_holder("a"), a_holder("b", state="releasing"), a_holder("c"))
    assert bound(rule, a_member("a"))


def test_a_member_that_goes_after_all_were_there_keeps_no_other_from_being_bound(rule: GangRule) -> None:
    created(rule, a_member("a"), a_member("b"))
    both = on_card(rule, None, a_holder("a"), a_holder("b"))
    assert bound(rule, a_member("a")) == ""
    rule.take(changed("pod", a_member("a", node=NODE), None))
    on_card(rule, both, a_holder("b"))
    assert bound(rule, a_member("b")) == ""


def test_who_is_entered_after_another_has_gone_is_found(rule: GangRule) -> None:
    created(rule, a_member("a"), a_member("b"), a_member("c"))
    before = on_card(rule, on_card(rule, None, a_holder("a"), a_holder("b")))
    on_card(rule, before, a_holder("c"))
    assert bound(rule, a_member("c"))


def test_a_replacement_beside_members_that_run_is_in_order(rule: GangRule) -> None:
    created(rule, a_member("a", 3), a_member("b", 3), a_member("c", 3))
    all_three = on_card(rule, None, *map(a_holder, "abc"))
    two = on_card(rule, all_three, *map(a_holder, "ab"))
    created(rule, a_member("new", 3))
    on_card(rule, two, a_holder("a"), a_holder("b"), a_holder("new"))
    assert bound(rule, a_member("new", 3)) == ""


def test_a_binding_that_crosses_a_second_operators_taking_back_is_in_order(rule: GangRule) -> None:
    created(rule, a_member("a"), a_member("b"))
    both = on_card(rule, None, a_holder("a"), a_holder("b"))
    on_card(rule, both, a_holder("a"), a_holder("b", state="releasing"))
    assert bound(rule, a_member("b")) == ""


def test_a_share_that_was_taken_back_and_entered_again_needs_the_others_again(rule: GangRule) -> None:
    created(rule, a_member("a"), a_member("b"))
    both = on_card(rule, None, a_holder("a"), a_holder("b"))
    alone = on_card(rule, on_card(rule, both, a_holder("b", state="releasing")))
    on_card(rule, alone, a_holder("b"))
    assert bound(rule, a_member("b"))


def test_a_gang_whose_pods_say_different_numbers_is_not_checked(rule: GangRule) -> None:
    """One that says another number can be created while a Binding is under way."""
    created(rule, a_member("a", 1))
    created(rule, a_member("b", 2))
    on_card(rule, None, a_holder("a"))
    assert bound(rule, a_member("a", 1)) == ""
    assert rule.checks == 0
