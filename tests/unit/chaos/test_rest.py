"""At rest, every share has its pod, every pod its shares, every card its node, and nobody waits in vain."""

from typing import Any

import pytest

from chaos.checker import Finding
from chaos.examples import CARD, NODE, POD, a_card, a_holder, a_node, a_pod
from chaos.gang_rule import GANG, MINIMUM
from chaos.rest import miscounted, unsettled
from cluster.cluster import CORES, COUNT, MEMORY, PERCENT

Json = dict[str, Any]

NOBODY: dict[str, Json] = {}
NOW = "2026-01-01T00:00:10Z"


def found(card: Json, pod: Json | None = None, node: Json | None = None) -> list[Finding]:
    pods = {pod["metadata"]["uid"]: pod} if pod else NOBODY
    return unsettled({CARD: card}, pods, {NODE: node or a_node()}, NOW)


def test_a_bound_pod_with_its_share_is_in_order() -> None:
    assert not found(a_card(a_holder()), a_pod(GPU_1=4000))


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (None, "allocated"),
        (None, "releasing"),
        (a_pod(node=None), "allocated"),
        ({**a_pod(GPU_1=4000), "status": {"phase": "Failed"}}, "allocated"),
        (a_pod(GPU_1=4000), "releasing"),
        (a_pod(GPU_2=4000), "allocated"),
    ],
    ids=["gone", "gone and releasing", "not bound", "ended", "releasing", "bound to another card"],
)
def test_a_share_without_a_pod_that_has_a_right_to_it_is_found(pod: Json | None, state: str) -> None:
    assert "a share is left over" in {finding.rule for finding in found(a_card(a_holder(state=state)), pod)}


@pytest.mark.parametrize(
    ("phase", "deadline", "is_kept"),
    [
        ("Unavailable", "2026-01-01T00:00:11Z", True),
        ("Unavailable", "2026-01-01T00:00:10Z", False),
        ("Ready", "2026-01-01T00:00:11Z", False),
    ],
)
def test_what_is_kept_for_a_pod_may_wait_for_an_agent_that_is_away(phase: str, deadline: str, is_kept: bool) -> None:
    card = a_card({**a_holder(state="reserved"), "deadline": deadline}, phase=phase)
    rules = [finding.rule for finding in found(card, a_pod(node=None), a_node(slots=0 if phase != "Ready" else 10))]
    assert ("a share is left over" not in rules) == is_kept


def test_a_bound_pod_without_its_share_is_found() -> None:
    (finding,) = found(a_card(), a_pod(GPU_1=4000))
    assert finding.rule == "a bound pod lacks its shares"


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        ({COUNT: 1, MEMORY: 6000}, True),
        ({COUNT: 1, MEMORY: 6001}, False),
        ({COUNT: 1, PERCENT: 60}, True),
        ({COUNT: 1, PERCENT: 61}, False),
        ({COUNT: 2, MEMORY: 1000}, False),
        ({COUNT: 1, MEMORY: 1000, CORES: 99}, True),
        ({COUNT: 1, MEMORY: 1000, CORES: 100}, False),
        ({COUNT: 1}, False),
    ],
    ids=str,
)
def test_a_pod_that_waits_is_found_if_it_fits_beside_a_share_of_4000_mib(limits: Json, fits: bool) -> None:
    waiting = a_pod("uid-2", limits, node=None)
    cards, pods = {CARD: a_card(a_holder())}, {POD: a_pod(GPU_1=4000), "uid-2": waiting}
    rules = [finding.rule for finding in unsettled(cards, pods, {NODE: a_node()}, NOW)]
    assert rules == (["a pod waits that has room"] if fits else [])


@pytest.mark.parametrize(("cpus", "fits"), [("28", True), ("29", False), ("28500m", False)])
def test_a_pod_that_waits_for_cpu_is_in_order(cpus: str, fits: bool) -> None:
    waiting, there = a_pod("uid-2", {COUNT: 1, MEMORY: 1000}, node=None), a_pod(GPU_1=4000)
    waiting["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpus}
    there["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "100"}
    pods = {POD: there, "uid-2": waiting}
    rules = [finding.rule for finding in unsettled({CARD: a_card(a_holder())}, pods, {NODE: a_node()}, NOW)]
    assert rules == (["a pod waits that has room"] if fits else [])


@pytest.mark.parametrize(("waits", "is_left"), [(True, False), (False, True)])
def test_room_that_is_promised_to_a_pod_that_does_not_wait_is_found(waits: bool, is_left: bool) -> None:
    card, pod = a_card(a_holder()), a_pod(GPU_1=4000)
    other = a_pod("uid-2", {COUNT: 1, MEMORY: 9000}, node=None)
    card["status"]["claims"] = [{"podUID": "uid-2", "namespace": "default", "pod": "pod-uid-2"}]
    pods = {POD: pod, **({"uid-2": other} if waits else {})}
    rules = [finding.rule for finding in unsettled({CARD: card}, pods, {NODE: a_node()}, NOW)]
    assert rules == (["a claim is left over"] if is_left else [])


def test_a_pod_that_waits_for_a_card_that_takes_nobody_is_in_order() -> None:
    waiting, node = a_pod("uid-2", {COUNT: 1, MEMORY: 1000}, node=None), a_node(healthy=False)
    card = a_card(phase="Unhealthy")
    card["spec"]["healthy"] = False
    assert not found(card, waiting, node)


@pytest.mark.parametrize(
    ("card", "node"),
    [
        (a_card(memoryMiB=9000), a_node()),
        (a_card(), a_node(healthy=False)),
        (a_card(), a_node(slots=0)),
        (a_card(phase="Unavailable"), a_node()),
        (a_card(), a_node("GPU-2")),
    ],
    ids=["capacity", "health", "agent", "phase", "not reported"],
)
def test_a_card_that_is_not_as_its_node_reports_it_is_found(card: Json, node: Json) -> None:
    assert "a card is not as its node reports it" in {finding.rule for finding in found(card, None, node)}


def test_a_card_that_its_node_does_not_report_stays_as_long_as_it_is_held() -> None:
    pods, nodes = {POD: a_pod(GPU_1=4000)}, NOBODY
    assert not unsettled({CARD: a_card(a_holder(), phase="Unavailable")}, pods, nodes, NOW)
    assert unsettled({CARD: a_card(phase="Unavailable")}, NOBODY, nodes, NOW)


def test_a_reported_card_that_is_not_in_the_ledger_is_found() -> None:
    (finding,) = unsettled({}, NOBODY, {NODE: a_node()}, NOW)
    assert finding.rule == "a reported card is not in the ledger"


def test_memory_that_differs_from_the_ledger_is_found() -> None:
    cards = {CARD: a_card(a_holder())}
    assert not miscounted(cards, {"gpuledger_cards": 1, "gpuledger_holders": 1})
    assert len(miscounted(cards, {"gpuledger_cards": 1, "gpuledger_holders": 2})) == 1
    assert len(miscounted(cards, {})) == 2


@pytest.mark.parametrize(
    ("count", "minimum", "is_bound", "is_found"),
    [
        (2, 2, False, True),
        (3, 2, False, True),
        (3, 3, False, False),
        (2, 3, False, False),
        (2, 3, True, False),
        (1, 2, True, True),
    ],
    ids=[
        "room for all",
        "for as many as start",
        "for two of three",
        "one is missing",
        "for one of two",
        "for the last",
    ],
)
def test_a_gang_that_waits_is_found_if_all_that_it_lacks_fit_at_once(
    count: int, minimum: int, is_bound: bool, is_found: bool
) -> None:
    """A card has room for two of its pods."""
    running = a_pod("runs", node=NODE, GPU_1=4000)
    pods = {f"uid-{number}": a_pod(f"uid-{number}", node=None) for number in range(count)}
    for pod in (*pods.values(), running):
        pod["metadata"]["labels"] = {GANG: "train", MINIMUM: str(minimum)}
    card = a_card(a_holder("runs")) if is_bound else a_card()
    there = {**pods, **({"runs": running} if is_bound else {})}
    rules = [finding.rule for finding in unsettled({CARD: card}, there, {NODE: a_node()}, NOW)]
    assert rules == (["a gang waits that has room"] if is_found else [])
