"""The checker finds every container that has a wrong card, and nothing else."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.examples import CARD, POD, a_card, a_holder, a_pod, changed
from cluster.cluster import COUNT, MEMORY
from node_chaos import checker as checker_module
from node_chaos import rest
from node_chaos.checker import LAG_S, NodeChecker
from node_chaos.faulty_agent import rules_with_faults
from node_chaos.plan import ISOLATIONS as WAYS
from node_chaos.sight import Container, Look
from node_chaos.steps import Isolation

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
    assert see(checker, without) == set(), "its pod may be gone, and the watch show that a moment later"
    assert see(checker, without, at_s=1.1 + LAG_S) == {"a container has more or fewer cards than it asks for"}


def test_a_kubelet_that_hears_of_the_end_of_a_pod_first_may_start_its_container_without_its_card(
    checker: NodeChecker,
) -> None:
    without = Container("id", POD, "c0", (), frozenset(), frozenset())
    assert see(checker, without) == set()
    checker.take(changed("pod", a_pod(), None))
    assert see(checker, without, at_s=1.1 + LAG_S) == set()
    assert checker.without == {"id"}


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


# What keeps containers to their shares.

HELD, TOO_MUCH = "a container is not held to its share", "containers can take more than the ledger counts"
ANOTHERS = "a container's place for HAMi-core is another one's, too"


def a_claiming_pod(uid: str, named: str = "") -> Json:
    """Return a pod whose two containers use one claim, of its own or one that pods share."""
    pod = a_pod(uid, {})
    given = {"resourceClaimName": named} if named else {"resourceClaimTemplateName": "made-1-4000-0"}
    pod["spec"]["resourceClaims"] = [{"name": "gpu", **given}]
    use = {"claims": [{"name": "gpu"}]}
    pod["spec"]["containers"] = [{"name": name, "resources": use} for name in ("c0", "c1")]
    return pod


def a_checker(isolation: Isolation, *pods: Json) -> NodeChecker:
    """Return one that knows pods with one claim, which the ledger has under the first of them."""
    found = NodeChecker(isolation=isolation)
    uid, claim = pods[0]["metadata"]["uid"], pods[0]["spec"]["resourceClaims"][0]
    holder = a_holder(uid)
    name = claim.get("resourceClaimName", "its-own")
    holder["containers"] = [{"name": "gpu/gpu", "memoryMiB": 4000, "cores": 0, "claim": {"name": name, "uid": "u"}}]
    found.take(changed("card", None, a_card(holder)))
    for pod in pods:
        found.take(changed("pod", None, pod))
    return found


def both(uid: str) -> list[Container]:
    return [replace(a_container(uid), identity=f"{uid}-{name}", name=name) for name in ("c0", "c1")]


def limits_of(containers: list[Container], mib: int = 4000, **pods: int) -> dict[tuple[str, str], int]:
    """Return what the driver holds to: each container, and pods by UID."""
    return {(each.identity, CARD): mib for each in containers} | {(uid, CARD): most for uid, most in pods.items()}


def look(checker: NodeChecker, containers: list[Container], limits: dict[tuple[str, str], int]) -> set[str]:
    checker.judge(checker.ledger(), Look(1.0, tuple(containers), limits))
    return {finding.rule for finding in checker.findings}


def test_containers_of_one_claim_are_held_to_one_amount_by_the_group_of_their_pod() -> None:
    pod, containers = a_claiming_pod(POD), both(POD)
    assert look(a_checker("driver", pod), containers, limits_of(containers, **{POD: 4000})) == set()
    assert look(a_checker("driver", pod), containers, limits_of(containers)) == {TOO_MUCH}
    assert look(a_checker("driver", pod), containers, limits_of(containers, **{POD: 4001})) == {TOO_MUCH}
    assert look(a_checker("driver", pod), containers[:1], limits_of(containers)) == set()
    assert look(a_checker("none", pod), containers, {}) == set(), "nothing holds them, and the card has enough"


def test_what_a_pod_holds_for_a_container_that_has_ended_may_be_taken_by_its_others() -> None:
    pod, containers = a_claiming_pod(POD), both(POD)
    checker = a_checker("driver", pod)
    holder = {**a_holder(memory_mib=10_000), "containers": checker.ledger().shares[POD, CARD]["containers"]}
    checker.take(changed("card", None, a_card(holder)))
    assert look(checker, containers, limits_of(containers, **{POD: 10_000})) == set()


def test_pods_that_use_one_claim_at_the_same_time_are_found() -> None:
    pods = [a_claiming_pod(uid, "joint-1-4000-0") for uid in (POD, "uid-2")]
    containers = [both(uid)[0] for uid in (POD, "uid-2")]
    assert look(a_checker("driver", *pods), containers[1:], limits_of(containers)) == set()
    assert look(a_checker("driver", *pods), containers, limits_of(containers)) == {TOO_MUCH}
    assert look(a_checker("none", *pods), containers, {}) == set()


def test_a_container_that_nothing_holds_or_that_is_held_to_another_amount_is_found() -> None:
    pod, (one, _) = a_claiming_pod(POD), both(POD)
    assert look(a_checker("driver", pod), [one], {}) == {HELD}
    assert look(a_checker("driver", pod), [one], limits_of([one], 4001)) == {HELD, TOO_MUCH}
    for isolation in WAYS.keys() - {"none", "driver"}:
        assert look(a_checker(isolation, pod), [one], {}) == {HELD}
        assert look(a_checker(isolation, pod), [replace(one, told_most=((CARD, 4000),))], {}) == set()
        told = [replace(each, told_most=((CARD, 4000),)) for each in both(POD)]
        assert look(a_checker(isolation, pod), told, {}) == {TOO_MUCH}


def test_a_place_of_hami_cores_that_two_have_is_found(checker: NodeChecker) -> None:
    mine = replace(a_container(), places=frozenset({("counters", "0:1 /a"), ("lock", "0:2 /")}))
    none = replace(a_container(), identity="none", places=frozenset({("counters", ""), ("lock", "")}))
    assert ANOTHERS not in see(checker, mine, none, replace(none, identity="another"))
    other = frozenset({("counters", "0:1 /b"), ("lock", "0:2 /")})
    assert ANOTHERS in see(checker, mine, replace(mine, identity="other", places=other))


@pytest.mark.parametrize("pipes", [("0:1 /mps/daemons/g/clients", "rw,nosuid"), ("0:1 /mps/daemons/g/pipe", "ro")])
def test_a_container_that_sees_or_can_change_more_of_its_mps_daemon_is_found(
    checker: NodeChecker, pipes: tuple[str, str]
) -> None:
    assert see(checker, replace(a_container(), pipes=("0:1 /mps/daemons/g/clients", "ro,nosuid"))) == set()
    rule = "a container has more of its MPS daemon than its socket to read"
    assert see(checker, replace(a_container(), pipes=pipes)) == {rule}


def test_a_container_whose_pod_nobody_knows_is_found(checker: NodeChecker) -> None:
    assert see(checker, a_container("unknown"), at_s=1.0) == set()
    assert see(checker, a_container("unknown"), at_s=1.1 + LAG_S) == {"a container runs whose pod was never there"}


def test_a_fault_is_planted_for_each_rule() -> None:
    """Here or in test_rest.py, where what is seen is wrong, or as an agent's fault, on a real node."""
    here = Path(__file__).parent
    planted = "".join(file.read_text() for file in here.glob("test_*.py")) + str(rules_with_faults())
    rules = set()
    for module in (checker_module, rest):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        calls = [each for each in ast.walk(tree) if isinstance(each, (ast.Call, ast.Assign, ast.IfExp))]
        texts = [each.value for call in calls for each in ast.walk(call) if isinstance(each, ast.Constant)]
        rules |= {
            each for each in texts if isinstance(each, str) and each.startswith(("a ", "the kubelet", "containers can"))
        }
    assert len(rules) > 20
    assert not [rule for rule in sorted(rules) if rule not in planted]
