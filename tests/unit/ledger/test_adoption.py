"""An annotation is believed in which cards a pod has, where that agrees with its spec, and in nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_card, a_pod, a_request, a_share, mib, percent, whole
from gpuledger.ledger.adoption import Claimant, ambiguous_cards, lacks_cards, missing_shares, without_room
from gpuledger.model.card import Amounts, Card, total
from gpuledger.model.errors import BadInput
from gpuledger.model.node import AnnotatedCard, OldDevices, PodFacts
from gpuledger.model.request import Demand, Lifetime
from gpuledger.model.share import ContainerShare, Share

FIRST, SECOND, THERE = a_card(0), a_card(1), a_card(0, "node-b")
CARDS = {card.uuid: card for card in (FIRST, SECOND, THERE)}


class Cards:
    """The ledger's cards."""

    def card(self, uuid: str) -> Card | None:
        return CARDS.get(uuid)

    def cards_of(self, node_name: str) -> list[Card]:
        return [card for card in CARDS.values() if card.node_name == node_name]


def bound(*annotated: AnnotatedCard, demands: tuple[Demand, ...] = (mib(1_000),)) -> PodFacts:
    """Return a pod on node-a whose containers are c0, c1, ..."""
    return PodFacts(a_pod("a"), "node-a", finished=False, request=a_request(*demands), annotated=annotated)


def says(card: Card = FIRST, memory_mib: int = 1_000, cores: int = 0, container: str = "c0") -> AnnotatedCard:
    return AnnotatedCard(container, card.uuid, memory_mib, cores)


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


def test_the_annotation_says_which_alternative_the_pod_has() -> None:
    other = replace(a_request(mib(2_000, cards=2)), names=("gpu/small",))
    pod = bound(says(FIRST, container="gpu/small"), says(SECOND, container="gpu/small"))
    assert pod.request is not None
    pod = replace(pod, request=replace(pod.request, alternatives=(other,)))
    shares = missing(pod)
    assert [(share.uuid, share.amounts.memory_mib) for share in shares] == [(FIRST.uuid, 2_000), (SECOND.uuid, 2_000)]
    assert pod.request is not None
    assert not lacks_cards(shares, pod.request)
    assert lacks_cards(shares[:1], pod.request)


def test_who_asks_for_every_card_has_as_many_as_the_annotation_names() -> None:
    pod = bound(says(FIRST), says(SECOND), demands=(replace(mib(1_000), every_card=True),))
    assert [share.uuid for share in missing(pod)] == [FIRST.uuid, SECOND.uuid]


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        (replace(bound(), annotated=None), "no annotation says"),
        (replace(bound(), annotated=None, bad_annotation="annotation is not JSON"), "annotation is not JSON"),
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


# What the system says that placed the pod before.


class OtherCards(Cards):
    """Cards of one node, some of them with the same number."""

    def __init__(self, *cards: Card) -> None:
        self._cards = {card.uuid: card for card in cards}

    def card(self, uuid: str) -> Card | None:
        return self._cards.get(uuid)

    def cards_of(self, node_name: str) -> list[Card]:
        return [card for card in self._cards.values() if card.node_name == node_name]


def old(*demands: Demand, cards: tuple[AnnotatedCard, ...] = (), indexes: tuple[int, ...] = ()) -> PodFacts:
    """Return a pod on node-a that says in another system's annotation which cards its containers have."""
    pod = bound(demands=demands or (mib(1_000),))
    return replace(pod, annotated=None, old=OldDevices("other/devices", cards, indexes))


def of_containers(shares: tuple[Share, ...]) -> dict[str, list[str]]:
    """Return container -> UUIDs of its cards."""
    found: dict[str, list[str]] = {}
    for share in shares:
        for container in share.containers:
            found.setdefault(container.name, []).append(share.uuid)
    return found


def test_an_old_annotation_is_believed_like_our_own() -> None:
    (share,) = missing(old(cards=(says(SECOND, 5_000),)))
    assert (share.uuid, share.amounts) == (SECOND.uuid, Amounts(5_000, 0, 1))
    with pytest.raises(BadInput, match="which is on node node-b"):
        missing(old(cards=(says(THERE),)))


def test_our_own_annotation_goes_before_an_old_one() -> None:
    pod = replace(old(cards=(says(SECOND),)), annotated=(says(FIRST),))
    assert [share.uuid for share in missing(pod)] == [FIRST.uuid]


def test_a_number_is_the_card_that_has_it_on_the_pods_node() -> None:
    (share,) = missing(old(mib(1_000, cores=20), indexes=(1,)))
    assert (share.uuid, share.amounts) == (SECOND.uuid, Amounts(1_000, 20, 1))


def test_several_numbers_go_to_the_containers_in_order() -> None:
    assert of_containers(missing(old(whole(), whole(), indexes=(1, 0)))) == {"c0": [SECOND.uuid], "c1": [FIRST.uuid]}
    assert of_containers(missing(old(whole(2), indexes=(1, 0)))) == {"c0": [FIRST.uuid, SECOND.uuid]}


def test_one_number_is_for_all_containers() -> None:
    """Volcano's first plugin gives a pod that asks for memory one card."""
    (share,) = missing(old(mib(1_000), mib(2_000), indexes=(1,)))
    assert (share.uuid, share.amounts) == (SECOND.uuid, Amounts(3_000, 0, 2))


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        (old(indexes=(7,)), "says 7, and no card has this number on node node-a"),
        (old(mib(1, cards=2), indexes=(0,)), "names 1 cards; the pod asks for 2"),
        (old(indexes=(0, 1)), "names 2 cards; the pod asks for 1"),
        (old(mib(1), mib(1), mib(1), indexes=(0, 1)), "names 2 cards; the pod asks for 3"),
        (old(), "names 0 cards; the pod asks for 1"),
        (old(cards=(says(FIRST), says(SECOND))), "names 2 cards for container c0, which asks for 1"),
        (old(cards=(says(FIRST, container="x"),)), "gives cards to container 'x', which asks for none"),
    ],
)
def test_an_old_annotation_that_contradicts_spec_or_node_is_of_no_use(pod: PodFacts, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        missing(pod)


def test_a_number_that_several_cards_have_is_of_no_use_and_these_cards_are_known() -> None:
    twin = replace(SECOND, uuid="GPU-twin")
    cards = OtherCards(FIRST, SECOND, twin, THERE)
    pod = old(indexes=(1,))
    with pytest.raises(BadInput, match="says 1, and several cards have this number on node node-a"):
        missing_shares(pod, (), cards)
    assert ambiguous_cards(pod, cards) == (SECOND, twin)


def test_nothing_is_ambiguous_where_numbers_are_unique_or_not_what_counts() -> None:
    cards = OtherCards(FIRST, SECOND, replace(SECOND, uuid="GPU-twin"))
    assert ambiguous_cards(old(indexes=(0,)), cards) == ()
    assert ambiguous_cards(old(cards=(says(SECOND),)), cards) == ()
    assert ambiguous_cards(bound(), cards) == ()
    assert ambiguous_cards(replace(old(indexes=(1,)), annotated=()), cards) == ()


claimants = st.lists(
    st.builds(
        lambda number, memory_mib, minute, exclusive: Claimant(
            a_pod(f"uid-{number}"), Amounts(memory_mib, 0, 1), f"2030-01-01T00:{minute:02}:00Z", exclusive
        ),
        st.integers(0, 1_000_000),
        st.integers(1, 12),
        st.integers(0, 59),
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda each: each.pod.uid,
)


@given(claimants, st.integers(0, 30), st.booleans())
def test_those_who_stay_on_a_card_have_room_and_nobody_leaves_for_a_younger_one(
    found: list[Claimant], free_mib: int, taken: bool
) -> None:
    free = Amounts(free_mib, 0, 10)
    left = without_room(free, taken, found)
    stay = sorted((each for each in found if each not in left), key=lambda each: (each.since, each.pod.uid))
    assert total(each.amounts for each in stay).fits_in(free)
    if any(each.exclusive for each in stay):
        assert len(stay) == 1
        assert not taken
    for each in left:
        older = [other for other in stay if (other.since, other.pod.uid) < (each.since, each.pod.uid)]
        has_room = (total(other.amounts for other in older) + each.amounts).fits_in(free)
        alone = not older and not taken
        assert not has_room or any(other.exclusive for other in older) or (each.exclusive and not alone)
