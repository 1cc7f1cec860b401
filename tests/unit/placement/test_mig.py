"""A MIG device is a card of its own: a pod that fits gets it alone, and nobody gets a part of a GPU for a whole one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders import a_card, a_ledger, a_request, a_share, mib, occupy, percent, whole
from gpuledger.model.card import Card, CardFilter
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.request import Demand, Lifetime
from gpuledger.model.share import Assignment, shares_of
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import Preference

SMALL = replace(a_card(0, uuid="MIG-small", memory_mib=5_000, number=1), mode="mig")
LARGE = replace(a_card(1, uuid="MIG-large", memory_mib=20_000, number=1), mode="mig")
WHOLE = a_card(2, uuid="GPU-whole", memory_mib=40_000)
NODE = (SMALL, LARGE, WHOLE)

BY_MODE, BY_UUID = CardFilter(modes=("mig",)), CardFilter(use_uuids=(LARGE.uuid,))


def chosen(*demands: Demand, cards: Sequence[Card] = NODE) -> Assignment | Reason:
    found = choose_cards(demands, a_ledger(*cards).node_room("node-a"), Preference.BINPACK)
    return found.reason if isinstance(found, Refusal) else found


@pytest.mark.parametrize(("memory_mib", "uuid"), [(1, "MIG-small"), (5_000, "MIG-small"), (5_001, "MIG-large")])
def test_who_asks_by_memory_gets_the_smallest_device_that_has_it(memory_mib: int, uuid: str) -> None:
    assert chosen(mib(memory_mib)) == ((uuid,),)


def test_a_device_has_one_slot_so_who_gets_it_is_alone_on_it() -> None:
    ledger = a_ledger(SMALL)
    occupy(ledger, "first", a_share(SMALL, 1_000))
    found = choose_cards((mib(1_000),), ledger.node_room("node-a"), Preference.BINPACK)
    assert isinstance(found, Refusal)
    assert found.reason is Reason.NO_SLOT


@pytest.mark.parametrize(
    "demand",
    [
        whole(),
        percent(10),
        percent(100, cores=50),
        mib(1_000, cores=10),
        mib(1_000, cores=100),
        mib(1_000, cards=2),
    ],
    ids=["a card", "a percentage", "cores", "memory and cores", "memory, alone", "several cards"],
)
def test_nobody_gets_a_part_of_a_gpu_who_asks_for_one_or_for_percents_of_one(demand: Demand) -> None:
    assert chosen(demand, cards=(SMALL, LARGE)) is Reason.NOT_WANTED
    assert chosen(demand, cards=(*NODE, replace(WHOLE, uuid="GPU-2"))) in [
        (("GPU-whole",),),
        (("GPU-2",),),
        (("GPU-2", "GPU-whole"),),
    ]


def test_more_than_the_device_has_does_not_stand_for_the_device() -> None:
    """In Volcano's words, memory beyond a card is all of the card: of a GPU, not of a seventh of one."""
    volcanos = replace(mib(30_000), at_most_card=True)
    assert chosen(volcanos, cards=(SMALL, LARGE)) is Reason.NOT_WANTED
    assert chosen(volcanos) == (("GPU-whole",),)
    assert chosen(replace(volcanos, memory_mib=4_000)) == (("MIG-small",),)


def test_a_node_whose_devices_are_all_too_small_says_so() -> None:
    assert chosen(mib(30_000), cards=(SMALL, LARGE)) is Reason.CARD_TOO_SMALL


@pytest.mark.parametrize(("wanted", "uuid"), [(BY_MODE, "MIG-small"), (BY_UUID, "MIG-large")], ids=["mode", "uuid"])
@pytest.mark.parametrize("demand", [whole(), percent(50), mib(1_000, cores=30)], ids=["all", "percent", "cores"])
def test_who_names_the_mode_or_the_device_gets_it_whatever_he_asks_of_it(
    demand: Demand, wanted: CardFilter, uuid: str
) -> None:
    found = chosen(replace(demand, wanted=wanted), cards=(SMALL, LARGE, replace(WHOLE, mode="mps")))
    assert found == ((uuid,),)


def test_all_of_a_device_is_all_of_what_it_has() -> None:
    request = a_request(replace(whole(), wanted=BY_MODE))
    (share,) = shares_of(request, ((SMALL.uuid,),), [SMALL])
    assert (share.amounts.memory_mib, share.amounts.cores, share.exclusive) == (5_000, 100, True)


def test_an_init_container_and_the_main_one_have_the_same_device_one_after_the_other() -> None:
    assert chosen(mib(4_000, lifetime=Lifetime.INIT), mib(3_000), cards=(SMALL,)) == ((SMALL.uuid,), (SMALL.uuid,))


def test_containers_that_mean_different_cards_do_not_take_each_others() -> None:
    """A device and a GPU of the same size are not the same to the one who asks for percents."""
    twin = replace(SMALL, uuid="GPU-twin", index=9, mode="")
    for shape in ((mib(5_000), percent(100)), (percent(100), mib(5_000))):
        found = chosen(*shape, cards=(SMALL, twin))
        assert not isinstance(found, Reason)
        assert found[[d.memory_mib for d in shape].index(None)] == ("GPU-twin",)
