"""Requests of claims as demands of cards: amounts, classes, constraints, and what is refused."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_card
from fakes.claims import OUR_CLASS
from gpuledger.formats.custom_resource.stored_card import API_VERSION, MAX_MEMORY_MIB
from gpuledger.formats.resource_claims.claims import DEVICE_CLASS, DRIVER, ListedClaims, read_spec
from gpuledger.formats.resource_claims.demands import MOST_CONSTRAINTS, claim_alternatives
from gpuledger.model.card import CardFilter, CardRule
from gpuledger.model.errors import BadInput
from gpuledger.model.request import MAX_CARDS, Demand, Lifetime

Json = dict[str, Any]


def share(**parameters: Any) -> Json:
    return {"apiVersion": API_VERSION, "kind": "Share", **parameters}


def config(*requests: str, **parameters: Any) -> Json:
    given = {"opaque": {"driver": DRIVER, "parameters": share(**parameters)}}
    return {**given, "requests": list(requests)} if requests else given


def a_class(name: str, *expressions: str, **parameters: Any) -> Json:
    spec: Json = {"selectors": [{"cel": {"expression": each}} for each in expressions]}
    if parameters:
        spec["config"] = [config(**parameters)]
    return {"metadata": {"name": name}, "spec": spec}


OF_DRIVER = f'device.driver == "{DRIVER}"'


def demands(
    devices: Json, classes: Sequence[Json] = (OUR_CLASS,), number: int = 0, chosen: CardFilter | None = None
) -> list[dict[str, Demand]]:
    objects = ListedClaims(classes=classes)
    spec, wanted = read_spec({"devices": devices}), chosen or CardFilter()
    ways = claim_alternatives("c", number, spec, objects, wanted, Lifetime.MAIN)
    return [{entry.name: entry.demand for entry in way} for way in ways]


def request(name: str = "gpu", capacity: Json | None = None, **exactly: Any) -> Json:
    wish = {"deviceClassName": DEVICE_CLASS, "capacity": {"requests": capacity or {}}, **exactly}
    return {"name": name, "exactly": wish}


def demand(capacity: Json | None = None, *, parameters: Json | None = None, **exactly: Any) -> Demand:
    given = [config(**parameters)] if parameters is not None else []
    ((found,),) = [
        way.values() for way in demands({"requests": [request(capacity=capacity, **exactly)], "config": given})
    ]
    return found


def refused(capacity: Json | None = None, *, parameters: Json | None = None, **exactly: Any) -> str:
    with pytest.raises(BadInput) as error:
        demand(capacity, parameters=parameters, **exactly)
    said = str(error.value)
    assert said.startswith("claim c, request gpu: ")
    return said.removeprefix("claim c, request gpu: ")


# Amounts: memory in MiB, percent, cores, exclusive.


@pytest.mark.parametrize(
    ("capacity", "parameters", "expected"),
    [
        ({}, None, (None, 100, 0, True)),
        ({"memory": "4Gi"}, None, (4096, 100, 0, False)),
        ({"cores": "30"}, None, (None, 100, 30, False)),
        ({"cores": "100"}, None, (None, 100, 100, True)),
        ({"memory": "4Gi", "cores": "30"}, None, (4096, 100, 30, False)),
        ({"memory": "4Gi", "cores": "100"}, None, (4096, 100, 100, True)),
        ({f"{DRIVER}/memory": "4Gi", f"{DRIVER}/cores": "30"}, None, (4096, 100, 30, False)),
        ({"slots": "1"}, None, (None, 100, 0, True)),
        ({}, {"memoryMiB": 1000}, (1000, 100, 0, False)),
        ({}, {"memoryPercent": 25}, (None, 25, 0, False)),
        ({}, {"memoryPercent": 100}, (None, 100, 0, True)),
        ({}, {"memoryPercent": 25, "cores": 30}, (None, 25, 30, False)),
        ({}, {"cores": 0}, (None, 100, 0, False)),
        ({}, {"cores": 100}, (None, 100, 100, True)),
        ({}, {"exclusive": True, "memoryMiB": 1000}, (1000, 100, 0, True)),
        ({}, {"exclusive": False}, (None, 100, 0, False)),
        ({"memory": "2Gi"}, {"memoryMiB": 1000, "cores": 30}, (2048, 100, 30, False)),
        ({"memory": "2Gi"}, {"memoryPercent": 25}, (2048, 100, 0, False)),
        ({"cores": "10"}, {"memoryPercent": 25, "cores": 30}, (None, 25, 10, False)),
        ({"memory": "2Gi"}, {"exclusive": True}, (2048, 100, 0, True)),
    ],
)
def test_the_requests_own_amounts_count_before_those_of_its_configuration(
    capacity: Json, parameters: Json | None, expected: tuple[int | None, int, int, bool]
) -> None:
    found = demand(capacity, parameters=parameters)
    assert (found.memory_mib, found.memory_percent, found.cores, found.exclusive) == expected
    assert (found.cards, found.resource, found.every_card) == (1, DRIVER, False)


def test_a_request_without_amounts_is_for_whole_cards() -> None:
    assert demand().whole
    assert not demand({"memory": "4Gi"}).whole


@pytest.mark.parametrize(
    ("quantity", "memory_mib"),
    [
        ("1", 1),
        ("1048577", 2),
        ("1Ki", 1),
        ("3Mi", 3),
        ("2Gi", 2048),
        ("1Ti", 2**20),
        ("4k", 1),
        ("2M", 2),
        ("1G", 954),
        ("1e9", 954),
        ("1.5Gi", 1536),
        ("500m", 1),
    ],
)
def test_memory_is_read_in_every_unit_and_rounded_up_to_mib(quantity: str, memory_mib: int) -> None:
    assert demand({"memory": quantity}).memory_mib == memory_mib


@pytest.mark.parametrize(("quantity", "cores"), [("0", 0), ("30", 30), ("3e1", 30), ("30000m", 30)])
def test_cores_are_read_as_whole_percents(quantity: str, cores: int) -> None:
    assert demand({"cores": quantity}).cores == cores


OUT_OF_RANGE = f"is not between 1Mi and {MAX_MEMORY_MIB}Mi; write it in bytes, as 10Gi"


@pytest.mark.parametrize(
    ("capacity", "sentence"),
    [
        ({"memory": "0"}, f"memory: 0 {OUT_OF_RANGE}"),
        ({"memory": "7E"}, f"memory: 7E {OUT_OF_RANGE}"),
        ({"memory": "much"}, "memory: 'much' is not an amount"),
        ({"memory": "-1Gi"}, "memory: '-1Gi' is not an amount"),
        ({"cores": "101"}, "cores: 101 is more than 100 percent, which is a whole card"),
        ({"cores": "1500m"}, "cores: 1500m is not a whole number"),
        ({"cores": "30Mi"}, "cores: 30Mi has a unit of bytes; write a plain whole number"),
        ({"slots": "2"}, "slots: a share takes one; to be alone on a card, ask for 100 cores"),
        ({"slots": "0"}, "slots: a share takes one; to be alone on a card, ask for 100 cores"),
        ({"slots": "some"}, "slots: 'some' is not a number"),
        ({"bandwidth": "1"}, "cards have no capacity bandwidth: there are memory, cores, and slots"),
        (
            {"nic.example.com/memory": "1"},
            "cards have no capacity nic.example.com/memory: there are memory, cores, and slots",
        ),
    ],
)
def test_an_amount_that_no_card_has_is_refused(capacity: Json, sentence: str) -> None:
    assert refused(capacity) == sentence


def test_what_a_request_can_not_have_is_refused() -> None:
    said = refused(adminAccess=True)
    assert said == "adminAccess is not given: a pod on a card is counted like any other, so drop it"
    assert refused(count=MAX_CARDS + 1) == f"no node has {MAX_CARDS + 1} cards"
    assert refused(count=2**62) == f"no node has {2**62} cards"
    assert refused(allocationMode="Some") == "allocationMode Some is not known: write ExactCount or All"
    assert refused(deviceClassName="gone") == "there is no DeviceClass gone"
    assert refused(parameters={"memory": 1}).startswith("the configuration has no field 'memory'")


def test_several_cards_and_every_card() -> None:
    assert demand(count=MAX_CARDS).cards == MAX_CARDS
    every = demand({"memory": "4Gi"}, allocationMode="All")
    assert (every.every_card, every.cards) == (True, 1)


def test_a_request_of_another_drivers_class_needs_a_claim_of_its_own() -> None:
    nic = a_class("nic", 'device.driver == "nic.example.com"')
    both = {"requests": [request("gpu"), request("nic", deviceClassName="nic")]}
    with pytest.raises(BadInput) as error:
        demands(both, [OUR_CLASS, nic])
    assert str(error.value) == (
        f"claim c, request nic: DeviceClass nic has no GPUs of {DRIVER}: a claim is served by one driver, "
        "so put it into a claim of its own"
    )


def test_an_administrators_class_adds_its_selectors_and_gives_what_the_claim_does_not_say() -> None:
    uuid = f'device.attributes["{DRIVER}"].uuid'
    first = a_class("first", OF_DRIVER, f'{uuid} == "{a_card(0).uuid}"', cores=30, memoryMiB=1000)
    devices = {
        "requests": [request(deviceClassName="first", selectors=[{"cel": {"expression": f'{uuid} != "x"'}}])],
        "config": [config(memoryMiB=2000)],
    }
    ((found,),) = [way.values() for way in demands(devices, [first])]
    assert (found.memory_mib, found.cores) == (2000, 30)
    assert [test.text for test in found.wanted.tests] == [f'{uuid} == "{a_card(0).uuid}"', f'{uuid} != "x"']
    assert [found.admits(a_card(index)) for index in range(2)] == [True, False]


def test_a_selector_that_can_not_be_read_is_refused_with_its_place() -> None:
    said = refused(selectors=[{"cel": {"expression": "device.driver =="}}])
    assert said.startswith("selector")


def test_wishes_of_the_configuration_are_added_to_those_of_the_pod() -> None:
    chosen = CardFilter(use_models=("a100",), modes=("mps",))
    parameters = share(models=["H100"], avoidModels=["T4"], uuids=["GPU-1"], avoidUUIDs=["GPU-2"], oneNUMANode=True)
    devices = {"requests": [request()], "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}]}
    ((found,),) = [way.values() for way in demands(devices, chosen=chosen)]
    assert (found.wanted.use_models, found.wanted.avoid_models) == (("a100", "H100"), ("T4",))
    assert (found.wanted.use_uuids, found.wanted.avoid_uuids) == (("GPU-1",), ("GPU-2",))
    assert (found.wanted.modes, found.one_numa_node) == (("mps",), True)
    assert demand(parameters={"isolation": ["none"]}).wanted.modes == ("none",)


def test_a_configuration_is_for_the_requests_that_it_names() -> None:
    first = [{"name": name, "deviceClassName": DEVICE_CLASS} for name in ("big", "small")]
    devices = {
        "requests": [request("a"), request("b"), {"name": "c", "firstAvailable": first}],
        "config": [config("a", cores=10), config("c", cores=20), config("c/small", cores=30)],
    }
    big, small = demands(devices)
    assert [found.cores for found in big.values()] == [10, 0, 20]
    assert [found.cores for found in small.values()] == [10, 0, 30]
    assert [*big, *small][2::3] == ["c/c/big", "c/c/small"]


def test_earlier_requests_keep_their_first_choice_for_longer() -> None:
    first = [{"name": name, "deviceClassName": DEVICE_CLASS} for name in ("x", "y")]
    ways = demands({"requests": [{"name": name, "firstAvailable": first} for name in ("a", "b")]})
    assert [list(way) for way in ways] == [
        ["c/a/x", "c/b/x"],
        ["c/a/x", "c/b/y"],
        ["c/a/y", "c/b/x"],
        ["c/a/y", "c/b/y"],
    ]


def test_more_ways_than_are_tried_are_refused_without_counting_them() -> None:
    first = [{"name": f"s{number}", "deviceClassName": DEVICE_CLASS} for number in range(8)]
    devices = {"requests": [{"name": f"r{number}", "firstAvailable": first} for number in range(32)]}
    with pytest.raises(BadInput, match="claim c can be served in more than 8 ways: name fewer of them"):
        demands(devices)


def test_constraints_concern_the_requests_that_they_name_and_tell_claims_apart() -> None:
    root = "resource.kubernetes.io/pcieRoot"
    devices = {
        "requests": [request("a"), request("b")],
        "constraints": [{"matchAttribute": root}, {"distinctAttribute": f"{DRIVER}/model", "requests": ["b"]}],
    }
    (way,) = demands(devices, number=2)
    assert way["c/a"].rules == (CardRule(root, 2 * MOST_CONSTRAINTS, False),)
    assert way["c/b"].rules == (*way["c/a"].rules, CardRule(f"{DRIVER}/model", 2 * MOST_CONSTRAINTS + 1, True))


def test_a_constraint_on_what_no_card_has_is_refused() -> None:
    with pytest.raises(BadInput) as error:
        demands({"requests": [request()], "constraints": [{"matchAttribute": "nic.example.com/switch"}]})
    said = "claim c, request gpu: cards have no attribute nic.example.com/switch: there are gpu.gpuledger.dev/uuid"
    assert str(error.value).startswith(said)


@given(st.integers(1, MAX_MEMORY_MIB))
def test_any_number_of_mib_is_read_back(memory_mib: int) -> None:
    assert demand({"memory": f"{memory_mib}Mi"}).memory_mib == memory_mib
    assert demand({"memory": str(memory_mib * 2**20)}).memory_mib == memory_mib


QUANTITIES = st.from_regex(r"[0-9]{1,12}(\.[0-9]{1,3})?([KMGTPE]i|[kMGTPEmun]|[eE][+-]?[0-9]{1,2})?", fullmatch=True)


@given(st.dictionaries(st.sampled_from(["memory", "cores", "slots", f"{DRIVER}/memory"]), QUANTITIES))
def test_whatever_amount_is_written_is_one_that_a_card_can_have_or_is_refused(capacity: Json) -> None:
    try:
        found = demand(capacity)
    except BadInput:
        return
    assert found.memory_mib is None or 1 <= found.memory_mib <= MAX_MEMORY_MIB
    assert 0 <= found.cores <= 100
