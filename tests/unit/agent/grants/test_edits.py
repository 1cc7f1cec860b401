"""A container gets the devices of exactly its cards, and their names."""

from dataclasses import replace
from typing import Any

from gpuledger.agent.grants.grants import container_edits
from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.formats.runtime.cdi import VendorDevices

FIRST = GrantedCard("GPU-a", 0, "nvidia", "", 4_000, 30, False)
SECOND = GrantedCard("GPU-b", 1, "nvidia", "", 500, 0, False)
OTHER = GrantedCard("MLU-a", 0, "cambricon", "", 700, 0, False)


def devices(*names: str) -> VendorDevices:
    """Return what NVIDIA's toolkit describes, under these names; all need one library."""
    mounts = [{"hostPath": "/lib/libcuda.so", "containerPath": "/lib/libcuda.so"}]
    return VendorDevices(
        {f"nvidia.com/gpu={name}": {"deviceNodes": [{"path": f"/dev/{name}"}], "mounts": mounts} for name in names}
    )


def nodes_of(edits: dict[str, Any]) -> list[str]:
    return [each["path"] for each in edits.get("deviceNodes", ())]


def env_of(edits: dict[str, Any]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in edits["env"])


def test_devices_are_found_by_uuid_before_anything_else() -> None:
    edits = container_edits([FIRST], devices("GPU-a", "GPU-b", "0", "1"), {})
    assert nodes_of(edits) == ["/dev/GPU-a"]


def test_devices_are_found_by_index_where_the_toolkit_numbers_them() -> None:
    assert nodes_of(container_edits([SECOND], devices("0", "1", "all"), {})) == ["/dev/1"]


def test_several_cards_bring_their_devices_in_order_and_their_libraries_once() -> None:
    edits = container_edits([FIRST, SECOND], devices("GPU-a", "GPU-b"), {})
    assert nodes_of(edits) == ["/dev/GPU-a", "/dev/GPU-b"]
    assert len(edits["mounts"]) == 1
    assert env_of(edits)["GPULEDGER_UUIDS"] == "GPU-a,GPU-b"
    assert env_of(edits)["GPULEDGER_MEMORY_MIB"] == "4000,500"
    assert env_of(edits)["GPULEDGER_CORES"] == "30,0"


def test_an_image_that_asks_nvidias_runtime_for_all_cards_gets_no_others() -> None:
    assert env_of(container_edits([FIRST], devices("GPU-a"), {}))["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_without_the_toolkits_files_nvidias_runtime_is_told_the_uuids() -> None:
    edits = container_edits([FIRST, SECOND], VendorDevices(), {})
    assert nodes_of(edits) == []
    assert env_of(edits)["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_a_card_that_the_toolkit_does_not_know_leaves_all_to_nvidias_runtime() -> None:
    edits = container_edits([FIRST, SECOND], devices("GPU-a"), {})
    assert nodes_of(edits) == []
    assert env_of(edits)["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_a_part_of_a_card_is_never_taken_for_the_card_of_that_number() -> None:
    part = replace(FIRST, uuid="MIG-a", mode="mig")
    edits = container_edits([part], devices("GPU-a", "0"), {})
    assert nodes_of(edits) == []
    assert env_of(edits)["NVIDIA_VISIBLE_DEVICES"] == "MIG-a"
    assert nodes_of(container_edits([part], devices("0", "MIG-a"), {})) == ["/dev/MIG-a"]


def test_cards_of_other_vendors_get_their_names_and_nothing_of_nvidias() -> None:
    edits = container_edits([OTHER], devices("GPU-a", "0"), {})
    assert nodes_of(edits) == []
    assert env_of(edits) == {"GPULEDGER_UUIDS": "MLU-a", "GPULEDGER_MEMORY_MIB": "700", "GPULEDGER_CORES": "0"}


def test_a_card_of_another_vendor_takes_nothing_from_nvidias() -> None:
    edits = container_edits([FIRST, OTHER], devices("GPU-a"), {})
    assert nodes_of(edits) == ["/dev/GPU-a"]
    assert "MLU-a" not in env_of(container_edits([FIRST, OTHER], VendorDevices(), {}))["NVIDIA_VISIBLE_DEVICES"]


def test_limits_go_before_what_a_vendors_file_says() -> None:
    vendor = VendorDevices({"nvidia.com/gpu=GPU-a": {"env": ["CUDA_DEVICE_ORDER=FASTEST_FIRST", "X=1"]}})
    edits = container_edits([FIRST], vendor, {"env": ["CUDA_DEVICE_ORDER=PCI_BUS_ID"]})
    assert env_of(edits)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env_of(edits)["X"] == "1"
