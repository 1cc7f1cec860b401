"""What is written into a claim's status."""

from __future__ import annotations

from typing import Any

from builders import a_card
from fakes.stored_claims import OUR_CLASS, a_claim, exactly, known, parameters
from gpuledger.formats.resource_claims.allocation import (
    allocation,
    devices_of,
    is_allocated_as,
    with_consumer,
    without_consumer,
)
from gpuledger.formats.resource_claims.device import device_name
from gpuledger.formats.resource_claims.names import DRIVER
from gpuledger.formats.resource_claims.objects import read_claim
from gpuledger.model.amounts import Amounts
from gpuledger.model.pod_claim import PodClaim
from gpuledger.model.share import ContainerShare, Pod, Share

Json = dict[str, Any]

FIRST, SECOND = a_card(0), a_card(1)
CARDS = {card.uuid: card for card in (FIRST, SECOND)}
POD = Pod("pod", "default", "train")
CLAIM = PodClaim("card", "made", "uid", wishes=read_claim(a_claim("made", exactly())).spec)


def a_share(card: Any, *parts: ContainerShare, exclusive: bool = False) -> Share:
    return Share(card.uuid, Amounts(1000, 30, 1), exclusive, parts)


def test_each_request_has_a_result_for_each_of_its_cards_with_what_it_takes() -> None:
    shares = [
        a_share(FIRST, ContainerShare("card/a", 1000, 30), ContainerShare("main", 5, 5)),
        a_share(SECOND, ContainerShare("card/a", 1000, 30), ContainerShare("card/b/small", 10, 0)),
    ]
    results = allocation(CLAIM, "node-1", shares, CARDS, known())["devices"]["results"]
    assert [(each["request"], each["device"]) for each in results] == [
        ("a", device_name(FIRST.uuid)),
        ("a", device_name(SECOND.uuid)),
        ("b/small", device_name(SECOND.uuid)),
    ]
    assert {(each["driver"], each["pool"]) for each in results} == {(DRIVER, "node-1")}
    assert results[0]["consumedCapacity"] == {"memory": "1000Mi", "cores": "30", "slots": "1"}
    assert len({each["shareID"] for each in results}) == 3


def test_a_card_alone_takes_all_of_its_cores_and_slots() -> None:
    capacity = FIRST.capacity
    share = Share(FIRST.uuid, capacity, True, (ContainerShare("card/gpu", capacity.memory_mib, 0),))
    (result,) = allocation(CLAIM, "node-1", [share], CARDS, known())["devices"]["results"]
    assert result["consumedCapacity"] == {
        "memory": f"{capacity.memory_mib}Mi",
        "cores": str(capacity.cores),
        "slots": str(capacity.number),
    }


def test_the_same_shares_are_always_the_same_allocation() -> None:
    share = a_share(FIRST, ContainerShare("card/gpu", 1000, 30))
    first, again = (allocation(CLAIM, "node-1", [share], CARDS, known()) for _ in range(2))
    assert first == again
    assert is_allocated_as(first, again)
    other = allocation(CLAIM, "node-1", [a_share(SECOND, ContainerShare("card/gpu", 1000, 30))], CARDS, known())
    assert not is_allocated_as(first, other)


def test_amounts_that_an_older_api_server_has_dropped_are_no_difference() -> None:
    wanted = allocation(CLAIM, "node-1", [a_share(FIRST, ContainerShare("card/gpu", 1000, 30))], CARDS, known())
    stored = {
        "devices": {
            "results": [
                {key: each[key] for key in ("request", "driver", "pool", "device")}
                for each in wanted["devices"]["results"]
            ]
        }
    }
    assert is_allocated_as(stored, wanted)


def test_the_configuration_that_has_counted_is_noted_with_its_source() -> None:
    of_class = {**OUR_CLASS, "spec": {**OUR_CLASS["spec"], "config": [parameters(cores=10)]}}
    stored = a_claim("made", exactly())
    stored["spec"]["devices"]["config"] = [parameters(["gpu"], memoryMiB=1000)]
    claim = PodClaim("card", "made", "uid", wishes=read_claim(stored).spec)
    share = a_share(FIRST, ContainerShare("card/gpu", 1000, 10))
    config = allocation(claim, "node-1", [share], CARDS, known(of_class))["devices"]["config"]
    assert [(each["source"], each["requests"]) for each in config] == [("FromClass", ["gpu"]), ("FromClaim", ["gpu"])]
    assert [each["opaque"]["driver"] for each in config] == [DRIVER, DRIVER]


def test_a_pod_is_a_consumer_once_and_the_last_one_takes_the_allocation_with_it() -> None:
    status: Json = {"allocation": {"devices": {"results": [{"driver": DRIVER, "device": "gpu-0"}]}}}
    one = with_consumer(with_consumer(status, POD), POD)
    both = with_consumer(one, Pod("other", "default", "other"))
    assert [each["uid"] for each in both["reservedFor"]] == ["pod", "other"]
    left = without_consumer(both, "pod")
    assert [each["uid"] for each in left["reservedFor"]] == ["other"]
    assert devices_of(left) == {"gpu-0"}
    assert without_consumer(left, "other") == {}
