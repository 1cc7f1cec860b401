"""Whatever the catalogue of hostile objects has, chaos can play."""

from collections import Counter

import pytest

from chaos.arithmetic import asks_of
from chaos.checker import Checker
from chaos.examples import CARD, NODE, a_card, a_node, a_pod, changed
from chaos.hostile_user import MOST_OF_A_KIND, bodies_of
from chaos.rest import unsettled
from chaos.run import is_expected
from hostile.catalogue import CATALOGUE, NAMESPACE, path_of


@pytest.mark.parametrize("kind", CATALOGUE)
def test_each_kind_can_be_created_and_understood(kind: str) -> None:
    bodies = bodies_of(kind, NODE)
    assert 0 < len(bodies) <= MOST_OF_A_KIND
    for body in bodies:
        assert body["metadata"]["namespace"] == NAMESPACE
        assert NAMESPACE in path_of(body)
        assert body.get("spec", {}).get("nodeName", NODE) == NODE
        if body["kind"] == "Pod":
            asks_of(body)


def test_no_name_is_used_twice() -> None:
    # Kinds are created and deleted side by side.
    names = Counter((body["kind"], body["metadata"]["name"]) for make in CATALOGUE.values() for body in make())
    assert set(names.values()) == {1}


def test_a_hostile_pod_may_wait_though_there_is_room() -> None:
    pod = a_pod(node=None)
    for namespace, count in ("default", 1), (NAMESPACE, 0):
        pod["metadata"]["namespace"] = namespace
        assert len(unsettled({CARD: a_card()}, {pod["metadata"]["uid"]: pod}, {NODE: a_node()}, "")) == count


@pytest.mark.parametrize(("by_hand", "found"), [(True, 0), (False, 1)], ids=["by hand", "by the scheduler"])
def test_a_hostile_pod_is_bound_without_a_share_by_hand_only(by_hand: bool, found: int) -> None:
    checker, pod, waiting = Checker(0, 0), a_pod(), a_pod(node=None)
    for each in pod, waiting:
        each["metadata"]["namespace"] = NAMESPACE
    if not by_hand:
        checker.take(changed("pod", None, waiting))
    checker.take(changed("pod", None if by_hand else waiting, pod))
    assert len(checker.findings) == found


@pytest.mark.parametrize(
    ("kind", "pod", "expected"),
    [
        ("not-adoptable", f"{NAMESPACE}/by-hand", True),
        ("not-adoptable", "default/by-hand", False),
        ("pod-gone", f"{NAMESPACE}/by-hand", False),
        ("wrong-total", None, False),
    ],
)
def test_the_audit_may_miss_the_share_of_a_hostile_pod(kind: str, pod: str | None, expected: bool) -> None:
    assert is_expected({"kind": kind, "pod": pod}) == expected
