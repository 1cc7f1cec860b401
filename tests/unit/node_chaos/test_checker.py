"""The checker finds every container that has a wrong card, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.examples import CARD, POD, a_card, a_holder, a_pod, changed
from cluster.cluster import COUNT, MEMORY
from node_chaos.checker import LAG_S, NodeChecker
from node_chaos.sight import Container, Look

Json = dict[str, Any]
OTHER = "GPU-2"


def a_container(pod: str = POD, *cards: tuple[str, int, int]) -> Container:
    """Return a container that has these cards, by default what `a_holder` says."""
    had = cards or ((CARD, 4000, 0),)
    uuids = frozenset(uuid for uuid, _, _ in had)
    return Container(f"id-{pod}", pod, "c0", had, mounted=uuids, devices=uuids)


@pytest.fixture
def checker() -> NodeChecker:
    """Return one that knows a pod with its share of a card, and another card that nobody holds."""
    found = NodeChecker()
    for card in (a_card(a_holder()), a_card(uuid=OTHER)):
        found.take(changed("card", None, card))
    found.take(changed("pod", None, a_pod()))
    return found


def see(checker: NodeChecker, *containers: Container, at_s: float = 1.0) -> set[str]:
    """Show what runs; return the rules that were broken so far."""
    checker.judge(checker.ledger(), Look(at_s, containers))
    return {finding.rule for finding in checker.findings}


def test_a_container_with_its_own_share_is_in_order(checker: NodeChecker) -> None:
    assert see(checker, a_container()) == set()
    assert checker.checks > 4


def test_another_card_than_that_of_the_share_is_found_at_the_latest_when_the_ledger_must_have_been_seen(
    checker: NodeChecker,
) -> None:
    swapped = a_container(POD, (OTHER, 4000, 0))
    assert see(checker, swapped, at_s=1.0) == set()
    assert see(checker, swapped, at_s=1.1 + LAG_S) == {"a container runs without a share"}


def test_another_containers_amount_is_found(checker: NodeChecker) -> None:
    assert see(checker, a_container(POD, (CARD, 4001, 0))) == {
        "a container has another share than its own",
        "a container has another amount than it asks for",
    }


@pytest.mark.parametrize("witness", ["mounted", "devices"])
def test_a_card_file_or_a_device_of_another_card_is_found(checker: NodeChecker, witness: str) -> None:
    changes: dict[str, Any] = {witness: frozenset({OTHER})}
    assert see(checker, replace(a_container(), **changes)) == {"a container has other cards than it was told"}


def test_a_container_that_was_told_nothing_and_asks_for_a_card_is_found(checker: NodeChecker) -> None:
    without = Container("id", POD, "c0", (), frozenset(), frozenset())
    assert see(checker, without) == {"a container has more or fewer cards than it asks for"}


def test_a_kubelet_that_has_lost_its_record_may_start_a_container_without_its_card_and_not_with_another(
    checker: NodeChecker,
) -> None:
    checker.may_forget = True
    without = Container("id", POD, "c0", (), frozenset(), frozenset())
    assert see(checker, without) == set()
    assert checker.without == {"id"}
    empty = replace(without, identity="other", directory="/state/shares/slot-1-0a1b/share")
    assert see(checker, empty) == {"a container has more or fewer cards than it asks for"}


def test_a_directory_that_goes_under_a_container_is_found(checker: NodeChecker) -> None:
    full = replace(a_container(), directory="/state/shares/slot-1-0a1b/share")
    empty = replace(full, cards=(), mounted=frozenset(), devices=frozenset())
    assert see(checker, full) == set()
    checker.take(changed("pod", a_pod(), None))
    assert see(checker, empty) == {"a container has more or fewer cards than it asks for"}


def test_a_share_that_goes_while_its_container_runs_is_found(checker: NodeChecker) -> None:
    assert see(checker, a_container(), at_s=1.0) == set()
    checker.take(changed("card", a_card(a_holder()), a_card()))
    assert see(checker, a_container(), at_s=1.2) == {"a container runs whose share was given up"}


def test_a_share_that_goes_after_its_container_has_ended_is_in_order(checker: NodeChecker) -> None:
    see(checker, a_container(), at_s=1.0)
    checker.take(changed("card", a_card(a_holder()), a_card()))
    assert see(checker, at_s=1.2) == set()


def test_a_container_whose_pod_is_gone_is_still_known(checker: NodeChecker) -> None:
    checker.take(changed("pod", a_pod(), None))
    assert see(checker, a_container()) == set()


def test_containers_that_have_more_than_the_card_together_are_found(checker: NodeChecker) -> None:
    mib = {"uid-2": 4000, "uid-3": 4000}
    for uid, memory in mib.items():
        checker.take(changed("pod", None, a_pod(uid, {COUNT: 1, MEMORY: memory})))
    holders = [a_holder(), *(a_holder(uid, memory) for uid, memory in mib.items())]
    checker.take(changed("card", None, a_card(*holders)))
    at_once = [a_container(), *(a_container(uid, (CARD, memory, 0)) for uid, memory in mib.items())]
    assert see(checker, *at_once[:2]) == set()
    assert see(checker, *at_once) == {"a card is used beyond what it has"}


def test_a_neighbour_of_a_pod_that_has_its_card_for_itself_is_found(checker: NodeChecker) -> None:
    checker.take(changed("pod", None, a_pod("uid-2")))
    alone = [a_holder(exclusive=True), a_holder("uid-2")]
    checker.take(changed("card", None, a_card(*alone)))
    found = see(checker, a_container(), a_container("uid-2"))
    assert found == {"a pod that has a card for itself is not alone"}


def test_two_containers_that_read_their_cards_in_one_directory_are_found(checker: NodeChecker) -> None:
    mine = replace(a_container(), directory="/state/shares/slot-1-0a1b/share")
    assert see(checker, mine) == set()
    assert see(checker, mine, replace(mine, identity="another")) == {"a container's directory is another one's, too"}
