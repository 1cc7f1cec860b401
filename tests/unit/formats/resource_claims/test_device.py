"""A card as a device."""

from dataclasses import replace

import pytest

from gpuledger.formats.resource_claims.device import device_name, device_of
from gpuledger.model.amounts import Amounts
from gpuledger.model.card import Card

CARD = Card("GPU-7", "node-a", 3, Amounts(40960, 100, 10), model="A100", mode="mps", numa_node=1)


def test_a_device_has_the_cards_facts() -> None:
    device = device_of(CARD)
    assert device["name"] == "gpu-7"
    assert device["driver"] == "gpu.gpuledger.dev"
    assert device["allowMultipleAllocations"] is True
    assert device["attributes"] == {
        "uuid": {"string": "GPU-7"},
        "model": {"string": "A100"},
        "vendor": {"string": "nvidia"},
        "isolation": {"string": "mps"},
        "index": {"int": 3},
        "numaNode": {"int": 1},
        "resource.kubernetes.io/numaNode": {"int": 1},
    }
    assert device["capacity"] == {"memory": {"value": "40960Mi"}, "cores": {"value": "100"}, "slots": {"value": "10"}}


def test_what_is_not_known_of_a_card_is_not_said() -> None:
    attributes = device_of(replace(CARD, numa_node=None, model="", mode=""))["attributes"]
    assert {"numaNode", "resource.kubernetes.io/numaNode", "model"}.isdisjoint(attributes)
    assert attributes["isolation"] == {"string": "none"}


@pytest.mark.parametrize("uuid", ["GPU_7", "-a", "a-", "MIG-" + "a" * 60, "ä", ""])
def test_a_uuid_that_can_be_no_name_is_named_by_a_digest(uuid: str) -> None:
    name = device_name(uuid)
    assert name.startswith("gpu-")
    assert len(name) == 24
    assert name != device_name(uuid + "x")
