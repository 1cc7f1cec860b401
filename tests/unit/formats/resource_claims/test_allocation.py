"""What Bind writes into a claim's status, and what is read of it afterwards."""

from copy import deepcopy
from typing import Any

from builders import a_card, a_pod
from fakes.claims import OUR_CLASS
from gpuledger.formats.custom_resource.stored_card import API_VERSION
from gpuledger.formats.resource_claims.claims import DEVICE_CLASS, DRIVER, ListedClaims, read_spec
from gpuledger.formats.resource_claims.slices import (
    allocation,
    devices_of,
    is_allocated_as,
    with_consumer,
    without_consumers,
)
from gpuledger.model.card import Amounts
from gpuledger.model.request import PodClaim
from gpuledger.model.share import ContainerShare, Share

Json = dict[str, Any]

CARDS = {card.uuid: card for card in (a_card(0), a_card(1))}
FIRST, SECOND = CARDS.values()
CLAIM = PodClaim("c", "ours", "uid-of-claim", False, read_spec({}))


def a_part(name: str, memory_mib: int = 4_000, cores: int = 30) -> ContainerShare:
    return ContainerShare(name, memory_mib, cores)


def share_of(uuid: str, *parts: ContainerShare, exclusive: bool = False) -> Share:
    amounts = Amounts(sum(part.memory_mib for part in parts), sum(part.cores for part in parts), 1)
    return Share(uuid, amounts, exclusive, parts)


def allocated(*shares: Share, claim: PodClaim = CLAIM, classes: Any = (OUR_CLASS,)) -> Json:
    return allocation(claim, "node-a", shares, CARDS, ListedClaims(classes=classes))


def results(*shares: Share) -> list[Json]:
    return list(allocated(*shares)["devices"]["results"])


def test_each_request_has_its_card_with_what_it_takes_of_it() -> None:
    (result,) = results(share_of(FIRST.uuid, a_part("c/gpu")))
    assert len(result.pop("shareID")) == 36
    assert result == {
        "request": "gpu",
        "driver": DRIVER,
        "pool": "node-a",
        "device": FIRST.uuid.lower(),
        "consumedCapacity": {"memory": "4000Mi", "cores": "30", "slots": "1"},
    }


def test_an_allocation_is_for_one_node() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
    assert allocated(share_of(FIRST.uuid, a_part("c/gpu")))["nodeSelector"] == {"nodeSelectorTerms": [term]}


def test_an_alternative_is_named_with_its_request() -> None:
    (result,) = results(share_of(FIRST.uuid, a_part("c/gpu/small")))
    assert result["request"] == "gpu/small"


def test_several_cards_of_a_request_and_several_requests_on_a_card_are_each_a_result() -> None:
    shares = (share_of(FIRST.uuid, a_part("c/a"), a_part("c/b", 1_000)), share_of(SECOND.uuid, a_part("c/a")))
    found = [(each["request"], each["device"]) for each in results(*shares)]
    assert found == [("a", FIRST.uuid.lower()), ("b", FIRST.uuid.lower()), ("a", SECOND.uuid.lower())]
    assert len({each["shareID"] for each in results(*shares)}) == 3


def test_what_containers_and_other_claims_have_is_not_the_claims() -> None:
    mixed = share_of(FIRST.uuid, a_part("main"), a_part("c2/gpu"), a_part("c/gpu"))
    assert [each["request"] for each in results(mixed)] == ["gpu"]
    assert results(share_of(FIRST.uuid, a_part("main"))) == []


def test_who_is_alone_on_a_card_takes_all_its_cores_and_slots() -> None:
    (result,) = results(share_of(FIRST.uuid, a_part("c/gpu", FIRST.capacity.memory_mib, 0), exclusive=True))
    assert result["consumedCapacity"] == {"memory": "16000Mi", "cores": "100", "slots": "10"}


def test_the_same_shares_are_always_the_same_allocation() -> None:
    share = share_of(FIRST.uuid, a_part("c/gpu"))
    assert allocated(share) == allocated(deepcopy(share))
    other = PodClaim("c", "ours", "uid-of-another", False, CLAIM.wishes)
    assert allocated(share) != allocated(share, claim=other)


def test_the_configuration_that_has_counted_stands_beside_the_cards() -> None:
    share = {"apiVersion": API_VERSION, "kind": "Share"}
    opaque = {"opaque": {"driver": DRIVER, "parameters": {**share, "cores": 30}}}
    of_claim = {"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": {**share, "memoryMiB": 1_000}}}
    request = {"name": "gpu", "exactly": {"deviceClassName": DEVICE_CLASS}}
    spec = read_spec({"devices": {"requests": [request], "config": [of_claim]}})
    with_config = {**OUR_CLASS, "spec": {"config": [opaque]}}
    found = allocated(
        share_of(FIRST.uuid, a_part("c/gpu")), claim=PodClaim("c", "ours", "u", False, spec), classes=[with_config]
    )
    assert found["devices"]["config"] == [
        {"source": "FromClass", "requests": ["gpu"], **opaque},
        {"source": "FromClaim", **of_claim},
    ]
    assert "config" not in allocated(share_of(FIRST.uuid, a_part("c/gpu")))["devices"]


def test_a_pod_is_added_once_and_others_stay() -> None:
    status = with_consumer(with_consumer({"allocation": {}}, a_pod("a")), a_pod("b"))
    assert with_consumer(status, a_pod("b")) == status
    assert [each["uid"] for each in status["reservedFor"]] == ["a", "b"]
    assert status["reservedFor"][0] == {"resource": "pods", "name": "a", "uid": "a"}


def test_the_last_pod_that_leaves_takes_the_cards_with_it() -> None:
    status = with_consumer(with_consumer({"allocation": {"devices": {}}, "devices": []}, a_pod("a")), a_pod("b"))
    left = without_consumers(status, {"a"})
    assert [each["uid"] for each in left["reservedFor"]] == ["b"]
    assert "allocation" in left
    assert without_consumers(left, {"b"}) == {}
    assert without_consumers({}, {"b"}) == {}
    assert without_consumers(status, {"a", "b"}) == {}


def test_only_devices_of_ours_are_returned() -> None:
    ours = allocated(share_of(FIRST.uuid, a_part("c/gpu")))
    ours["devices"]["results"].append({"request": "nic", "driver": "nic.example.com", "pool": "p", "device": "eth0"})
    assert devices_of({"allocation": ours}) == {FIRST.uuid.lower()}
    assert devices_of({}) == frozenset()
    assert devices_of({"allocation": None}) == frozenset()


def test_an_allocation_is_the_wanted_one_by_its_places_whatever_amounts_the_api_server_has_kept() -> None:
    wanted = allocated(share_of(FIRST.uuid, a_part("c/a")), share_of(SECOND.uuid, a_part("c/b")))
    stored = deepcopy(wanted)
    stored["devices"]["results"].reverse()
    for result in stored["devices"]["results"]:
        del result["consumedCapacity"], result["shareID"]
    assert is_allocated_as(stored, wanted)
    assert not is_allocated_as({}, wanted)
    assert not is_allocated_as(allocated(share_of(FIRST.uuid, a_part("c/a"))), wanted)
    stored["devices"]["results"][0]["pool"] = "node-b"
    assert not is_allocated_as(stored, wanted)
