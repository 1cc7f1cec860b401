"""What is used beside what is held: the ledger says who is meant, and an agent's word counts for no one else."""

from typing import Any

import pytest

from builders import a_card, a_share
from fakes.usage import a_used_card, a_used_share, an_answer
from gpuledger.formats.node_usage import read_node_usage
from gpuledger.model.card import Amounts
from gpuledger.model.node import NodeUsage
from gpuledger.model.share import ContainerShare, Holder, Pod, Share
from gpuledger.reports.cards import CardReport, NodeCards, known_part, node_use

Json = dict[str, Any]
CARD, OTHER = a_card(0, "gpu-1"), a_card(1, "gpu-1")
WEB = Holder(Pod("uid-web", "default", "web"), a_share(CARD, 4_000, 20))
CHAT = Holder(Pod("uid-chat", "team", "chat"), a_share(CARD, 8_000, 30))
NODE = NodeCards("gpu-1", (CardReport(CARD, "Ready", "", (WEB, CHAT), 0, 0), CardReport(OTHER, "Ready", "", (), 0, 0)))


def measured(*containers: Json, cards: tuple[Json, ...] = ()) -> NodeUsage:
    return read_node_usage(an_answer("gpu-1", list(cards), list(containers)), "gpu-1")


def states(answer: NodeUsage | str, idle_after_s: int = 300) -> dict[str, str]:
    """Return pod -> what its container does."""
    card = node_use(NODE, answer, idle_after_s).json()["cards"][0]
    return {pod["pod"]: pod["containers"][0]["state"] for pod in card["pods"]}


def test_what_is_used_stands_beside_what_the_ledger_says_is_held() -> None:
    use = a_used_share(CARD, WEB, 1_200, 12, memoryHeldMiB=1, coresHeld=1, memoryLimitMiB=4_000)
    found = node_use(NODE, measured(use, cards=(a_used_card(CARD, 1_300, 37),)), 300).json()
    card, idle_card = found["cards"]
    assert (found["at"], found["problem"]) == ("2026-08-01T12:00:00Z", None)
    assert (card["memoryHeldMiB"], card["memoryUsedMiB"], card["utilizationPercent"]) == (12_000, 1_300, 37)
    assert (idle_card["memoryHeldMiB"], idle_card["memoryUsedMiB"], idle_card["pods"]) == (0, None, [])
    container = card["pods"][0]["containers"][0]
    assert (container["memoryHeldMiB"], container["coresHeld"]) == (4_000, 20)
    assert (container["memoryUsedMiB"], container["memoryLimitMiB"], container["state"]) == (1_200, 4_000, "in use")


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({"memoryUsedMiB": 0, "utilizationPercent": 0}, "idle"),
        ({"memoryUsedMiB": 0, "utilizationPercent": None}, "idle"),
        ({"memoryUsedMiB": 900, "utilizationPercent": 0}, "in use"),
        ({"memoryUsedMiB": 900, "utilizationPercent": 0, "lastKernelSecondsAgo": 299}, "in use"),
        ({"memoryUsedMiB": 900, "utilizationPercent": 0, "lastKernelSecondsAgo": 300}, "idle"),
        ({"memoryUsedMiB": 900, "utilizationPercent": 90, "lastKernelSecondsAgo": 300}, "in use"),  # a long kernel
        ({"memoryUsedMiB": 0, "utilizationPercent": 0, "lastKernelSecondsAgo": 4}, "in use"),  # has just ended
        ({"memoryUsedMiB": None, "utilizationPercent": None}, "unknown"),
        ({"memoryUsedMiB": 900, "lastKernelSecondsAgo": 9_000, "paused": True}, "paused"),
    ],
)
def test_idle_is_who_has_used_nothing_or_whose_last_kernel_is_long_ago(said: Json, state: str) -> None:
    assert states(measured(a_used_share(CARD, WEB, None, **said)))["web"] == state


def test_the_viewer_says_how_long_ago_is_long() -> None:
    answer = measured(a_used_share(CARD, WEB, 900, 0, lastKernelSecondsAgo=60))
    assert (states(answer, 60)["web"], states(answer, 61)["web"]) == ("idle", "in use")


def test_whoever_is_not_measured_has_not_started_and_without_an_answer_nothing_is_known() -> None:
    assert states(measured()) == {"web": "not started", "chat": "not started"}
    assert states("its agent is gone") == {"web": "unknown", "chat": "unknown"}
    found = node_use(NODE, "its agent is gone", 300).json()
    assert (found["problem"], found["at"]) == ("its agent is gone", None)
    assert found["cards"][0]["memoryIdleMiB"] == 0


def test_held_and_idle_is_what_no_container_at_work_may_use() -> None:
    """An init container that has ended shares the room of the one that came after it."""
    parts = (ContainerShare("load", 10_000, 0), ContainerShare("main", 8_000, 0), ContainerShare("helper", 2_000, 0))
    pod = Holder(Pod("uid-a", "default", "a"), Share(CARD.uuid, Amounts(10_000, 0, 1), False, parts))
    node = NodeCards("gpu-1", (CardReport(CARD, "Ready", "", (pod,), 0, 0),))

    def idle(**used_mib: int) -> int:
        uses = [a_used_share(CARD, pod, used, container=name) for name, used in used_mib.items()]
        return int(node_use(node, measured(*uses), 300).json()["cards"][0]["memoryIdleMiB"])

    assert idle(load=0, main=500, helper=100) == 0
    assert idle(load=0, main=500, helper=0) == 2_000
    assert idle(load=0, main=0, helper=0) == 10_000
    assert idle(load=0, main=0) == 8_000  # the helper has not started: that is not its own fault


def test_of_an_answer_only_that_is_kept_which_the_ledger_knows_each_once() -> None:
    stranger = Holder(Pod("uid-else", "team", "else"), a_share(CARD))
    elsewhere = a_card(0, "gpu-2")
    lies = [
        a_used_share(CARD, stranger, 1),
        a_used_share(OTHER, WEB, 2),  # it holds none of that card
        a_used_share(CARD, WEB, 3, container="made-up"),
        a_used_share(elsewhere, CHAT, 4),
    ]
    truth = [a_used_share(CARD, WEB, 100), a_used_share(CARD, WEB, 200), a_used_share(CARD, CHAT, 0)]
    cards = (a_used_card(CARD, 5), a_used_card(CARD, 6), a_used_card(elsewhere, 7))
    kept = known_part(measured(*lies, *truth, *lies * 50, cards=cards), NODE)
    assert [(each.pod_uid, each.memory_used_mib) for each in kept.containers] == [("uid-web", 200), ("uid-chat", 0)]
    assert [each.memory_used_mib for each in kept.cards] == [6]
