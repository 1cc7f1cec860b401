"""What a pod holds of each card: the peak of its containers, and what each of them uses."""

from dataclasses import replace

from builders import a_card, a_request, cards_of, mib, percent, whole
from gpuledger.model.card import Amounts
from gpuledger.model.request import Demand, Lifetime, PodRequest
from gpuledger.model.share import ContainerShare, Share, are_shares_of, covers, fitting_variant, shares_of

CARD = a_card()


def share_of_one_card(*demands: Demand) -> Share:
    """Return the share of a pod that has all its containers on one card."""
    (share,) = shares_of(a_request(*demands), tuple((CARD.uuid,) for _ in demands), [CARD])
    return share


def test_main_containers_on_one_card_add_up() -> None:
    share = share_of_one_card(mib(4_000, cores=10), mib(1_000, cores=20))
    assert share.amounts == Amounts(5_000, 30, 2)


def test_an_init_container_overlaps_with_the_main_ones() -> None:
    share = share_of_one_card(mib(6_000, lifetime=Lifetime.INIT), mib(4_000, cores=10), mib(1_000))
    assert share.amounts == Amounts(6_000, 10, 2)


def test_a_sidecar_adds_to_later_init_containers_and_to_the_main_ones() -> None:
    share = share_of_one_card(
        mib(500, lifetime=Lifetime.INIT), mib(1_000, lifetime=Lifetime.SIDECAR), mib(6_000, lifetime=Lifetime.INIT),
        mib(4_000),
    )  # fmt: skip
    assert share.amounts == Amounts(7_000, 0, 2)


def test_one_exclusive_container_makes_the_share_exclusive() -> None:
    assert share_of_one_card(whole(lifetime=Lifetime.INIT), mib(1_000)).exclusive
    assert not share_of_one_card(mib(1_000), mib(1_000)).exclusive


def test_each_container_is_listed_with_what_it_uses() -> None:
    share = share_of_one_card(percent(25, cores=30), mib(1_000))
    assert share.containers == (ContainerShare("c0", 4_000, 30), ContainerShare("c1", 1_000, 0))


def test_a_pod_has_one_share_of_every_card_it_uses_by_index() -> None:
    cards = cards_of(count=4)
    assignment = ((cards[1].uuid, cards[3].uuid), (cards[1].uuid,))
    shares = shares_of(a_request(mib(1_000, cards=2), mib(2_000)), assignment, cards)
    assert [(share.uuid, share.amounts.memory_mib) for share in shares] == [
        (cards[1].uuid, 3_000),
        (cards[3].uuid, 1_000),
    ]


def test_a_percentage_means_each_card_on_its_own() -> None:
    cards = [a_card(0, memory_mib=10_000), a_card(1, memory_mib=20_000)]
    shares = shares_of(a_request(percent(50, cards=2)), ((cards[0].uuid, cards[1].uuid),), cards)
    assert [share.amounts.memory_mib for share in shares] == [5_000, 10_000]


def held(*names: str) -> list[Share]:
    """Return shares of a card each, for containers of these names."""
    return [Share(f"GPU-{n}", Amounts(1), False, (ContainerShare(name, 1, 0),)) for n, name in enumerate(names)]


def test_a_pod_has_got_the_first_of_its_variants_that_its_shares_cover() -> None:
    first, second = PodRequest(("gpu/large",), (whole(2),)), PodRequest(("gpu/small",), (whole(),))
    request = replace(first, alternatives=(second,))
    assert fitting_variant(held("gpu/large", "gpu/large"), request) == request
    assert fitting_variant(held("gpu/small"), request) == second
    assert fitting_variant(held("gpu/large"), request) is None
    assert fitting_variant(held("gpu/small"), first) is None


def test_every_card_is_covered_by_all_cards_of_the_node_and_by_any_where_these_are_not_known() -> None:
    request = a_request(replace(whole(), every_card=True))
    assert covers(held("c0", "c0"), request, cards_of(count=2))
    assert not covers(held("c0"), request, cards_of(count=2))
    assert covers(held("c0"), request)
    assert not covers(held(), request)


def test_shares_are_of_a_request_only_if_each_container_has_as_many_cards_as_it_asks_for() -> None:
    """A seat of a reservation for two whole cards is none for a pod that asks for one."""
    cards = cards_of(count=2)
    uuids = tuple(card.uuid for card in cards)
    of_two = shares_of(a_request(whole(2)), (uuids,), cards)
    assert are_shares_of(of_two, a_request(whole(2)), cards)
    assert not are_shares_of(of_two, a_request(whole()), cards)
    assert not are_shares_of(of_two[:1], a_request(whole(2)), cards)
    assert are_shares_of(of_two[:1], a_request(whole()), cards)
