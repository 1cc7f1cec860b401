"""A card's attributes, by the names that ResourceSlices and ResourceClaims use."""

from dataclasses import replace

from builders import a_card
from gpuledger.model.card import ATTRIBUTES, attribute_of

CARD = replace(a_card(3, uuid="GPU-3"), model="NVIDIA H100", mode="hami-core", numa_node=1, pcie_root="pci0000:16")


def test_each_attribute_is_what_the_node_reports() -> None:
    assert {name: attribute_of(CARD, name) for name in ATTRIBUTES} == {
        "gpu.gpuledger.dev/uuid": "GPU-3",
        "gpu.gpuledger.dev/model": "NVIDIA H100",
        "gpu.gpuledger.dev/vendor": "nvidia",
        "gpu.gpuledger.dev/index": 3,
        "gpu.gpuledger.dev/isolation": "hami-core",
        "gpu.gpuledger.dev/numaNode": 1,
        "resource.kubernetes.io/pcieRoot": "pci0000:16",
        "resource.kubernetes.io/numaNode": 1,
    }


def test_what_is_not_reported_is_not_there_and_no_isolation_is_called_none() -> None:
    bare = a_card(0, uuid="GPU-0")
    assert {name: value for name in ATTRIBUTES if (value := attribute_of(bare, name)) is not None} == {
        "gpu.gpuledger.dev/uuid": "GPU-0",
        "gpu.gpuledger.dev/vendor": "nvidia",
        "gpu.gpuledger.dev/index": 0,
        "gpu.gpuledger.dev/isolation": "none",
    }


def test_a_name_that_nobody_knows_is_not_there() -> None:
    assert attribute_of(CARD, "gpu.gpuledger.dev/colour") is None
    assert attribute_of(CARD, "uuid") is None, "names are qualified"
