"""A claim's part of a share goes to another pod in the patch that takes its holder off the card."""

from dataclasses import replace
from typing import Any

import jsonpatch

from builders import a_card, a_holder, a_pod, stored
from gpuledger.formats.custom_resource.stored_card import holder_json
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, HolderState, Share
from gpuledger.workflows.journal.entries import Add, Bequest, HandOver, patch_of

CARD = a_card()

Json = dict[str, Any]


def by_claim(name: str, memory_mib: int = 4_000, cores: int = 30, claim: str = "ours") -> ContainerShare:
    return ContainerShare(name, memory_mib, cores, ClaimRef(claim, f"uid-of-{claim}", shared=True))


def holder(uid: str, *parts: ContainerShare, exclusive: bool = False) -> Holder:
    amounts = Amounts(sum(part.memory_mib for part in parts), sum(part.cores for part in parts), 1)
    return a_holder(uid, Share(CARD.uuid, amounts, exclusive, parts))


def hand_over(leaving: Holder, heir: str, *claims: str) -> HandOver:
    bequests = tuple(Bequest(a_pod(heir), f"uid-of-{claim}", "theirs") for claim in claims or ("ours",))
    return HandOver(holder=leaving, bequests=bequests, attempt="attempt")


def after(entries: list[Any], *holders: Holder) -> Json:
    """Return the card's status after the patch that these entries become."""
    ledger = Ledger()
    ledger.load(stored(CARD, *holders))
    entry = ledger.entry(CARD.uuid)
    assert entry is not None
    status = {
        "phase": "Ready",
        "reason": "",
        "used": {},
        "pods": "",
        "holders": [holder_json(each) for each in holders],
    }
    patched: Json = jsonpatch.apply_patch(
        {"metadata": {"resourceVersion": "1"}, "status": status}, patch_of(entry, entries)
    )
    found: Json = patched["status"]
    return found


def shown(status: Json) -> dict[str, tuple[list[str], int, int]]:
    """Return the holders' containers, memory and cores, after the sum of both was compared with `used`."""
    holders = status["holders"]
    assert status["used"]["memoryMiB"] == sum(each["memoryMiB"] for each in holders)
    assert status["used"]["cores"] == sum(each["cores"] for each in holders)
    assert status["used"]["number"] == sum(each["number"] for each in holders)
    names = {each["podUID"]: [part["name"] for part in each["containers"]] for each in holders}
    return {each["podUID"]: (names[each["podUID"]], each["memoryMiB"], each["cores"]) for each in holders}


async def test_the_heir_is_there_when_the_one_that_leaves_is_gone_and_calls_the_claim_by_its_own_name() -> None:
    leaving = holder("a", by_claim("gpu/one"))
    status = after([hand_over(leaving, "heir")], leaving, holder("other", ContainerShare("main", 1_000, 0)))
    assert shown(status) == {"other": (["main"], 1_000, 0), "heir": (["theirs/one"], 4_000, 30)}


async def test_only_what_is_held_by_the_claim_is_handed_over() -> None:
    leaving = holder("a", ContainerShare("main", 2_000, 10), by_claim("gpu/one"), by_claim("x/one", claim="another"))
    assert shown(after([hand_over(leaving, "heir")], leaving)) == {"heir": (["theirs/one"], 4_000, 30)}


async def test_one_heir_gets_all_the_claims_that_it_shares_with_the_one_that_leaves() -> None:
    leaving = holder("a", by_claim("x/one", 2_000, 10), by_claim("y/two", claim="other"))
    assert shown(after([hand_over(leaving, "heir", "ours", "other")], leaving)) == {
        "heir": (["theirs/one", "theirs/two"], 6_000, 40),
    }


async def test_an_heir_that_is_on_the_card_already_has_both_and_takes_no_other_slot() -> None:
    leaving, heir = holder("a", by_claim("gpu/one")), holder("heir", ContainerShare("main", 1_000, 5))
    assert shown(after([hand_over(leaving, "heir")], heir, leaving)) == {
        "heir": (["main", "theirs/one"], 5_000, 35),
    }


async def test_who_inherits_from_two_at_once_has_what_both_had() -> None:
    first, second = holder("a", by_claim("gpu/one")), holder("b", by_claim("gpu/one", 2_000, 10, "other"))
    entries = [hand_over(first, "heir"), hand_over(second, "heir", "other")]
    status = after(entries, first, holder("c", ContainerShare("main", 1_000, 0)), second)
    assert shown(status) == {"c": (["main"], 1_000, 0), "heir": (["theirs/one", "theirs/one"], 6_000, 40)}


async def test_two_can_hand_over_to_two_while_a_third_comes() -> None:
    first, second = holder("a", by_claim("gpu/one")), holder("b", by_claim("gpu/one", 2_000, 10, "other"))
    new = holder("new", ContainerShare("main", 500, 0))
    status = after([hand_over(first, "x"), hand_over(second, "y", "other"), Add(holder=new)], first, second)
    assert shown(status).keys() == {"x", "y", "new"}


async def test_who_was_alone_on_the_card_leaves_it_to_one_that_is_alone() -> None:
    leaving = holder("a", by_claim("gpu/one", CARD.capacity.memory_mib, 0), exclusive=True)
    (found,) = after([hand_over(leaving, "heir")], leaving)["holders"]
    assert (found["podUID"], found["exclusive"], found["memoryMiB"]) == ("heir", True, CARD.capacity.memory_mib)


async def test_all_of_a_card_is_inherited_once_by_whichever_claims() -> None:
    whole = CARD.capacity.memory_mib
    leaving = holder("a", by_claim("x/one", whole, 0), by_claim("y/two", 1_000, 0, "other"), exclusive=True)
    leaving = replace(leaving, share=replace(leaving.share, amounts=CARD.capacity))
    (found,) = after([hand_over(leaving, "heir", "ours", "other")], leaving)["holders"]
    assert (found["exclusive"], found["memoryMiB"], len(found["containers"])) == (True, whole, 2)


async def test_what_is_not_as_it_was_is_not_handed_over() -> None:
    leaving = holder("a", by_claim("gpu/one"))
    entry = hand_over(leaving, "heir")
    assert entry.applies_to(leaving)
    assert not entry.applies_to(None)
    changed = Holder(leaving.pod, leaving.share, HolderState.RELEASING, attempt=leaving.attempt)
    assert not entry.applies_to(changed)
