"""What moving over would enter, and what stands in the way, is known before anything is written."""

from datetime import UTC, datetime

from builders import a_card, a_holder, a_pod, a_request, a_share, mib, stored, whole
from gpuledger.ledger.adoption import Step, plan
from gpuledger.model.card import Card
from gpuledger.model.node import AnnotatedCard, ClusterSnapshot, NodeReport, OldDevices, PodFacts, SeenCard
from gpuledger.model.request import Demand
from gpuledger.model.share import Holder

FIRST, SECOND = a_card(0), a_card(1)
HAMI = "hami.io/vgpu-devices-allocated"
NAMES = ("gpuledger", "hami-scheduler")


def an_old_pod(
    name: str, *cards: Card, demand: Demand | None = None, scheduler_name: str = "hami-scheduler"
) -> PodFacts:
    """Return a pod that HAMi has given these cards."""
    demand = demand or mib(10_000, cards=len(cards))
    told = OldDevices(HAMI, tuple(AnnotatedCard("c0", card.uuid, 0, 0) for card in cards))
    return PodFacts(
        a_pod(name), "node-a", finished=False, request=a_request(demand), old=told, scheduler_name=scheduler_name
    )


def a_world(*pods: PodFacts, holders: tuple[Holder, ...] = (), in_ledger: bool = True) -> ClusterSnapshot:
    cards = (stored(FIRST, *holders), stored(SECOND)) if in_ledger else ()
    nodes = {"node-a": NodeReport((FIRST, SECOND))}
    seen = tuple(SeenCard(card, None) for card in cards)
    return ClusterSnapshot(seen, nodes, {pod.pod.uid: pod for pod in pods}, datetime(2030, 1, 1, tzinfo=UTC))


def told(steps: tuple[Step, ...]) -> list[tuple[str, str, str]]:
    return [(step.pod.name, step.share.uuid if step.share else "", step.why) for step in steps]


def test_pods_that_fit_are_entered_with_the_annotation_they_come_from() -> None:
    (step,) = plan(a_world(an_old_pod("a", SECOND)), NAMES)
    assert (step.source, step.why) == (HAMI, "")
    assert step.share is not None
    assert step.share.amounts.memory_mib == 10_000


def test_cards_that_are_not_in_the_ledger_yet_count_as_empty() -> None:
    assert plan(a_world(an_old_pod("a", FIRST), in_ledger=False), NAMES) == plan(a_world(an_old_pod("a", FIRST)), NAMES)


def test_of_two_pods_that_do_not_fit_together_the_second_is_a_conflict() -> None:
    first, second = told(plan(a_world(an_old_pod("b", FIRST), an_old_pod("a", FIRST)), NAMES))
    assert first == ("a", FIRST.uuid, "")
    assert second == (
        "b",
        FIRST.uuid,
        "the card has no room for the pod: it would be listed as a conflict",
    )


def test_a_whole_card_that_somebody_else_holds_is_a_conflict() -> None:
    holders = (a_holder("x", a_share(FIRST)),)
    ((_, _, why),) = told(plan(a_world(an_old_pod("a", FIRST, demand=whole()), holders=holders), NAMES))
    assert why.startswith("the card is not free")


def test_a_pod_that_has_its_shares_needs_nothing() -> None:
    pod = an_old_pod("a", FIRST, demand=mib(1_000))
    holders = (a_holder("a", a_share(FIRST)),)
    held = holders[0].share.containers[0]
    assert held.name == "main"
    request = a_request(mib(1_000))
    named = PodFacts(pod.pod, "node-a", False, type(request)(("main",), request.shape), old=pod.old)
    assert plan(a_world(named, holders=holders), NAMES) == ()


def test_a_pod_of_a_scheduler_that_is_not_ours_says_what_to_set() -> None:
    ((_, _, why),) = told(plan(a_world(an_old_pod("a", FIRST, scheduler_name="volcano")), NAMES))
    assert why == "its scheduler is volcano: name it in the setting extra_scheduler_names"


def test_a_pod_whose_annotation_can_not_be_used_is_shown_with_the_reason() -> None:
    ((_, uuid, why),) = told(plan(a_world(an_old_pod("a", a_card(0, "node-b"))), NAMES))
    assert (uuid, why.startswith("it asks for 1 cards; its annotation names card GPU-node-b-0")) == ("", True)


def test_pods_that_have_ended_are_left_out() -> None:
    pod = an_old_pod("a", FIRST)
    ended = PodFacts(pod.pod, "node-a", finished=True, request=pod.request, old=pod.old)
    assert plan(a_world(ended), NAMES) == ()


def test_a_pod_of_which_one_share_can_not_be_entered_gets_none() -> None:
    holders = (a_holder("x", a_share(FIRST, 16_000)),)
    steps = told(plan(a_world(an_old_pod("a", FIRST, SECOND), holders=holders), NAMES))
    assert [(uuid, bool(why)) for _, uuid, why in steps] == [(FIRST.uuid, True), (SECOND.uuid, True)]
