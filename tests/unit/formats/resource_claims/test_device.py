"""A card as a device of a ResourceSlice: named, described and measured within the API server's limits."""

import re
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.custom_resource import stored_card as crd
from gpuledger.formats.resource_claims.slices import binary_quantity, decimal_quantity, device_name, device_of
from gpuledger.model.card import Amounts, Card

UUID = "GPU-6872d8e1-0f0a-4d3c-9b51-2a0f6c9d1e77"
CARD = Card(UUID, "node-a", 3, Amounts(40_960, 100, 10), "nvidia", "A100", "mps", 1, "pci0000:16")

UNITS = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "k": 10**3, "M": 10**6, "G": 10**9, "": 1}


def amount(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * UNITS[unit]


def test_a_card_is_a_device_with_all_that_the_ledger_knows_of_it() -> None:
    assert device_of(CARD) == {
        "name": UUID.lower(),
        "attributes": {
            "index": {"int": 3},
            "isolation": {"string": "mps"},
            "model": {"string": "A100"},
            "numaNode": {"int": 1},
            "resource.kubernetes.io/numaNode": {"int": 1},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:16"},
            "uuid": {"string": UUID},
            "vendor": {"string": "nvidia"},
        },
        "capacity": {
            "memory": {
                "value": "40Gi",
                "requestPolicy": {"default": "40Gi", "validRange": {"min": "1Mi", "max": "40Gi", "step": "1Mi"}},
            },
            "cores": {
                "value": "100",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
            },
            "slots": {
                "value": "10",
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "10", "step": "1"}},
            },
        },
        "allowMultipleAllocations": True,
        "taints": [{"key": "gpuledger.dev/only", "effect": "NoSchedule"}],
    }


def test_what_a_machine_does_not_say_is_no_attribute() -> None:
    bare = device_of(replace(CARD, mode="", numa_node=-1, pcie_root=""))
    assert bare["attributes"].keys() == {"index", "isolation", "model", "uuid", "vendor"}
    assert bare["attributes"]["isolation"] == {"string": "none"}
    assert device_of(replace(CARD, numa_node=None))["attributes"].keys().isdisjoint({"numaNode"})


def test_a_card_that_is_not_healthy_has_a_taint_of_its_own() -> None:
    keys = [taint["key"] for taint in device_of(replace(CARD, healthy=False))["taints"]]
    assert keys == ["gpuledger.dev/only", "gpuledger.dev/unhealthy"]


def test_cores_that_are_offered_several_times_are_given_to_one_claim_once() -> None:
    cores = device_of(replace(CARD, capacity=Amounts(1000, 300, 10)))["capacity"]["cores"]
    assert (cores["value"], cores["requestPolicy"]["validRange"]["max"]) == ("300", "100")


@pytest.mark.parametrize("uuid", ["GPU-0", "MIG-5f9e7a61-0f0a-4d3c-9b51-2a0f6c9d1e77", "GPU-" + "0" * 59])
def test_a_device_is_named_as_its_card(uuid: str) -> None:
    assert device_name(uuid) == uuid.lower()


@pytest.mark.parametrize("uuid", ["GPU-" + "0" * 60, "ascend.0", "NPU-0-", "NPU-0\n"])
def test_a_card_whose_uuid_can_be_no_name_has_one_that_is_made_from_it(uuid: str) -> None:
    assert re.fullmatch(r"gpu-[0-9a-f]{20}", device_name(uuid))
    assert device_name(uuid) != device_name(uuid + "1")


def test_a_long_uuid_is_no_attribute_and_a_long_model_is_cut_between_two_characters() -> None:
    attributes = device_of(replace(CARD, uuid="GPU-" + "0" * 100, model="é" * 60 + "x" * 60))["attributes"]
    assert "uuid" not in attributes
    assert attributes["model"] == {"string": "é" * 32}
    assert device_of(replace(CARD, model="x" + "é" * 60))["attributes"]["model"] == {"string": "x" + "é" * 31}


@given(st.integers(1, crd.MAX_MEMORY_MIB), st.integers(0, crd.MAX_CORES), st.integers(1, crd.MAX_SLOTS))
def test_amounts_are_the_cards_and_their_ranges_are_those_that_the_api_server_takes(
    memory_mib: int, cores: int, slots: int
) -> None:
    capacity = device_of(replace(CARD, capacity=Amounts(memory_mib, cores, slots)))["capacity"]
    found = {name: amount(each["value"]) for name, each in capacity.items()}
    assert found == {"memory": memory_mib * 2**20, "cores": cores, "slots": slots}
    for each in capacity.values():
        value, policy = amount(each["value"]), each["requestPolicy"]
        default = amount(policy["default"])
        if "validRange" not in policy:
            assert policy["validValues"] == [policy["default"]]
            assert default <= value
            continue
        least, most, step = (amount(policy["validRange"][name]) for name in ("min", "max", "step"))
        assert least <= default <= most <= value
        assert least + step <= value
        assert (most - least) % step == (default - least) % step == 0


@given(st.integers(0, 10**10))
def test_quantities_are_the_shortest_spelling_as_the_api_server_gives_them_back(number: int) -> None:
    assert amount(decimal_quantity(number)) == number
    assert amount(binary_quantity(number)) == number * 2**20
    for text in (decimal_quantity(number), binary_quantity(number)):
        digits = Decimal(re.match(r"\d+", text)[0])  # type: ignore[index]
        base = 1024 if text.endswith("i") else 1000
        assert number == 0 or digits % base or text.endswith(("Pi", "G"))
