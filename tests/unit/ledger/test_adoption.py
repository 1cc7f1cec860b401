"""An annotation is believed in which cards a pod has, where that agrees with its spec, and in nothing else."""

from dataclasses import replace

import pytest

from builders import a_card, a_pod, a_request, a_share, mib, percent, whole
from gpuledger.ledger.adoption import lacks_cards, missing_shares
from gpuledger.model.amounts import Amounts
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput
from gpuledger.model.request import Demand, Lifetime
from gpuledger.model.share import ContainerShare, Share
from gpuledger.model.world import PodFacts, ToldCard

FIRST, SECOND, THERE = a_card(0), a_card(1), a_card(0, "node-b")
CARDS = {card.uuid: card for card in (FIRST, SECOND, THERE)}


class Cards:
    """The ledger's cards."""

    def card(self, uuid: str) -> Card | None:
        return CARDS.get(uuid)

    def cards_of(self, node_name: str) -> list[Card]:
        return [card for card in CARDS.values() if card.node_name == node_name]


def bound(*told: ToldCard, demands: tuple[Demand, ...] = (mib(1_000),)) -> PodFacts:
    """Return a pod on node-a whose containers are c0, c1, ..."""
    return PodFacts(a_pod("a"), "node-a", finished=False, request=a_request(*demands), told=told)


def says(card: Card = FIRST, memory_mib: int = 1_000, cores: int = 0, container: str = "c0") -> ToldCard:
    return ToldCard(container, card.uuid, memory_mib, cores)


def missing(pod: PodFacts, *held: Share) -> tuple[Share, ...]:
    return missing_shares(pod, held, Cards())


def test_the_cards_are_those_that_the_annotation_names() -> None:
    assert missing(bound(says(SECOND))) == (
        Share(SECOND.uuid, Amounts(1_000, 0, 1), False, (ContainerShare("c0", 1_000, 0),)),
    )


def test_shares_come_in_the_order_of_the_cards() -> None:
    pod = bound(says(SECOND), says(FIRST), demands=(mib(1_000, cards=2),))
    assert [share.uuid for share in missing(pod)] == [FIRST.uuid, SECOND.uuid]


@pytest.mark.parametrize(
    ("told_mib", "told_cores", "amounts"),
    [(1, 0, Amounts(1_000, 20, 1)), (5_000, 10, Amounts(5_000, 20, 1)), (1_000, 90, Amounts(1_000, 90, 1))],
)
def test_the_amounts_are_what_the_spec_asks_for_or_more(told_mib: int, told_cores: int, amounts: Amounts) -> None:
    (share,) = missing(bound(says(FIRST, told_mib, told_cores), demands=(mib(1_000, cores=20),)))
    assert share.amounts == amounts


def test_a_whole_card_stays_whole_whatever_its_annotation_says() -> None:
    (share,) = missing(bound(says(FIRST, 1, 1), demands=(whole(),)))
    assert (share.amounts, share.exclusive) == (Amounts(16_000, 100, 1), True)


def test_a_percentage_is_one_of_the_card_as_it_is_now() -> None:
    (share,) = missing(bound(says(FIRST, 1), demands=(percent(25),)))
    assert share.amounts.memory_mib == 4_000


def test_containers_that_never_run_together_do_not_add_up() -> None:
    demands = (mib(6_000, lifetime=Lifetime.INIT), mib(2_000))
    (share,) = missing(bound(says(FIRST, 1), says(FIRST, 9_000, container="c1"), demands=demands))
    assert share.amounts == Amounts(9_000, 0, 1)
    assert [c.memory_mib for c in share.containers] == [6_000, 9_000]


def test_what_is_held_already_is_not_missing() -> None:
    pod = bound(says(FIRST), says(SECOND), demands=(mib(1_000, cards=2),))
    held = replace(a_share(FIRST), containers=(ContainerShare("c0", 1_000, 0),))
    assert [share.uuid for share in missing(pod, held)] == [SECOND.uuid]


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        (replace(bound(), told=None), "no annotation says"),
        (replace(bound(), told=None, bad_annotation="annotation is not JSON"), "annotation is not JSON"),
        (bound(), "names 0 cards for container c0, which asks for 1"),
        (bound(says(FIRST), says(SECOND)), "names 2 cards for container c0, which asks for 1"),
        (bound(says(FIRST), says(SECOND, container="other")), "container 'other', which asks for none"),
        (bound(says(THERE)), "which is on node node-b"),
        (bound(says(a_card(7))), "which is not in the ledger"),
        (bound(says(), demands=(mib(1, cards=10**18),)), "which asks for 1000000000000000000"),
    ],
)
def test_an_annotation_that_contradicts_spec_or_ledger_is_of_no_use(pod: PodFacts, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        missing(pod)


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (a_share(SECOND), f"does not name card {SECOND.uuid}, which it holds"),
        (a_share(FIRST), f"names other containers for card {FIRST.uuid} than the ledger does"),
    ],
)
def test_an_annotation_that_contradicts_what_is_held_is_of_no_use(held: Share, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        missing(bound(says(FIRST)), held)


def test_a_pod_lacks_cards_as_long_as_one_container_does() -> None:
    request = a_request(mib(1_000, cards=2), mib(1_000))
    first = Share(FIRST.uuid, Amounts(), False, (ContainerShare("c0", 0, 0), ContainerShare("c1", 0, 0)))
    second = Share(SECOND.uuid, Amounts(), False, (ContainerShare("c0", 0, 0),))
    assert lacks_cards([], request)
    assert lacks_cards([first], request)
    assert lacks_cards([second, second], request)
    assert not lacks_cards([first, second], request)
