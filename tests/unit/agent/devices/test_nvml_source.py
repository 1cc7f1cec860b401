"""The inventory, through the real pynvml: what cards are, how they are connected, and that none hides the others."""

import logging
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from fakes.nvml.fake_driver import FakeDriver
from fakes.nvml.fake_nvml import (
    LOST,
    NO_FUNCTION,
    NOT_SUPPORTED,
    SWITCH,
    UNKNOWN,
    Card,
    Failure,
    Mig,
    NvLink,
    Pair,
    Process,
    all_pairs,
    bus_id,
    some_cards,
)
from gpuledger.agent.devices.nvml import NvmlSource
from gpuledger.agent.devices.source import CardUse, Device, DeviceProcess, node_cards
from gpuledger.model.failure import Failure as CardFailure
from gpuledger.model.failure import FaultClass
from gpuledger.model.node import NodeConfig

OPTIONAL = [
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlEventSetCreate",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
]
MIG_CARD = Card(
    "GPU-cut",
    bus_id(2),
    numa_node=1,
    mig=(Mig("MIG-b", place=3, gpu_instance=8), Mig("MIG-a", place=0, memory_mib=19968, compute_instance=1)),
)


def devices(source: NvmlSource) -> dict[str, Device]:
    return {device.uuid: device for device in source.snapshot().devices}


def uuids(source: NvmlSource) -> list[str]:
    return [device.uuid for device in source.snapshot().devices]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_card_is_listed_with_all_that_it_tells(driver: FakeDriver, source: NvmlSource) -> None:
    first, second = some_cards(2)
    driver.says(pairs=(Pair(first.uuid, second.uuid, ancestor=20),))
    snapshot = source.snapshot()
    assert (snapshot.driver_version, snapshot.cuda_version) == ("580.95.05", "13.0")
    assert snapshot.devices[1] == Device(
        uuid=second.uuid,
        index=1,
        model="NVIDIA A100-SXM4-80GB",
        memory_mib=81920,
        numa_node=1,
        bus_id="0000:08:00.0",
        links={first.uuid: 40},
    )


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_FUNCTION, UNKNOWN])
def test_what_a_driver_can_not_answer_costs_no_card(driver: FakeDriver, source: NvmlSource, code: int) -> None:
    driver.says(failures=tuple(Failure(code, call) for call in OPTIONAL))
    source.open()
    if code == UNKNOWN:  # whether a card is in MIG mode has to be known
        driver.says(failures=tuple(Failure(code, call) for call in OPTIONAL if call != "nvmlDeviceGetMigMode"))
    found = source.snapshot().devices
    assert [(device.uuid, device.memory_mib, device.fault) for device in found] == [
        ("GPU-00000000", 81920, ""),
        ("GPU-00000001", 81920, ""),
    ]
    assert source.wait_for_faults(0.01) == []
    assert source.uses().processes == ()


def test_a_uuid_is_text_whichever_way_pynvml_spells_it(source: NvmlSource, monkeypatch: pytest.MonkeyPatch) -> None:
    as_text = pynvml.nvmlDeviceGetUUID
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: as_text(handle).encode())
    assert uuids(source) == ["GPU-00000000", "GPU-00000001"]


@pytest.mark.parametrize(("content", "expected"), [("1\n", 1), ("-1\n", None), (None, None)])
def test_the_numa_node_is_that_of_the_pci_device_where_nvml_does_not_tell(
    driver: FakeDriver, source: NvmlSource, tmp_path: Path, content: str | None, expected: int | None
) -> None:
    driver.card(0, numa_node=None)
    pci_device = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:07:00.0"
    if content is not None:
        pci_device.mkdir(parents=True)
        (pci_device / "numa_node").write_text(content)
    assert source.snapshot().devices[0].numa_node == expected


def hang(sysfs: Path, address: str, target: str) -> None:
    """Put a PCI device into the tree, as the kernel does: a link to where it hangs."""
    directory = sysfs / "bus" / "pci" / "devices"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / address).symlink_to(target)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:07:00.0", "pci0000:00"),
        ("../../../devices/pci10000:e0/0000:07:00.0", "pci10000:e0"),
        ("../../../devices/pci0000:00", ""),
        ("../../../devices/pci0000:00/0000:08:00.0", ""),
        ("../../../devices/platform/0000:07:00.0", ""),
        ("../../../../elsewhere/pci0000:00/0000:07:00.0", ""),
        (None, ""),
    ],
)
def test_the_pcie_root_is_where_the_card_hangs_in_the_machines_tree(
    source: NvmlSource, tmp_path: Path, target: str | None, expected: str
) -> None:
    if target is not None:
        hang(tmp_path / "sys", "0000:07:00.0", target)
    assert [device.pcie_root for device in source.snapshot().devices] == [expected, ""]


def test_mig_devices_have_the_pcie_root_of_their_card(driver: FakeDriver, source: NvmlSource, tmp_path: Path) -> None:
    hang(tmp_path / "sys", "0000:09:00.0", "../../../devices/pci0000:16/0000:09:00.0")
    driver.says(cards=(MIG_CARD,))
    assert {device.pcie_root for device in source.snapshot().devices} == {"pci0000:16"}


def test_direct_nvlinks_are_counted_by_the_card_at_the_other_end(driver: FakeDriver, source: NvmlSource) -> None:
    first, second, third = some_cards(3)
    to_second = (NvLink(bus_id(1)), NvLink(bus_id(1)), NvLink(bus_id(1), active=False), NvLink(bus_id(2)))
    to_first = (NvLink(bus_id(0)), NvLink(bus_id(0)), NvLink(bus_id(0), active=False))
    cards = (replace(first, links=to_second), replace(second, links=to_first), replace(third, links=to_first[:1]))
    driver.says(cards=cards, pairs=all_pairs(cards, ancestor=50, nvlink=0))
    assert [device.links for device in source.snapshot().devices] == [
        {second.uuid: 210, third.uuid: 110},
        {first.uuid: 210, third.uuid: 10},
        {first.uuid: 110, second.uuid: 10},
    ]


def test_cards_behind_switches_have_the_smaller_number_of_links(driver: FakeDriver, source: NvmlSource) -> None:
    first, second = some_cards(2)
    many, few = (NvLink("00000000:C1:00.0", SWITCH),) * 18, (NvLink("00000000:C2:00.0", SWITCH),) * 12
    cards = (replace(first, links=many), replace(second, links=few))
    driver.says(cards=cards, pairs=all_pairs(cards, ancestor=40, nvlink=0))
    assert source.snapshot().devices[0].links == {second.uuid: 1220}


def test_nvlinks_count_only_where_the_driver_lets_the_pair_use_them(driver: FakeDriver, source: NvmlSource) -> None:
    cards = tuple(replace(card, links=(NvLink("00000000:C1:00.0", SWITCH),) * 18) for card in some_cards(2))
    driver.says(cards=cards, pairs=all_pairs(cards, ancestor=40, nvlink=pynvml.NVML_P2P_STATUS_NOT_SUPPORTED))
    assert source.snapshot().devices[0].links == {cards[1].uuid: 20}


def test_unequal_counts_of_nvlinks_are_said_once_and_the_lower_one_counts(
    driver: FakeDriver, source: NvmlSource, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = some_cards(2)
    cards = (replace(first, links=(NvLink(bus_id(1)),) * 2), replace(second, links=(NvLink(bus_id(0)),)))
    driver.says(cards=cards, pairs=all_pairs(cards, ancestor=50, nvlink=0))
    assert source.snapshot().devices[0].links == {second.uuid: 110}
    source.snapshot()
    (warning,) = warnings(caplog)
    assert "count 2 and 1 NVLinks to each other" in warning


def test_each_mig_device_is_a_card_of_its_own_and_its_card_is_not_listed(
    driver: FakeDriver, source: NvmlSource
) -> None:
    driver.says(cards=(*some_cards(2), MIG_CARD))
    mig = source.snapshot().devices[2:]
    assert [(device.uuid, device.index, device.memory_mib) for device in mig] == [
        ("MIG-a", 64 + 2 * 16, 19968),
        ("MIG-b", 64 + 2 * 16 + 3, 9728),
    ]
    assert {(device.mode, device.parent_uuid, device.number, device.numa_node, device.bus_id) for device in mig} == {
        ("mig", "GPU-cut", 1, 1, "0000:09:00.0")
    }


def test_a_fault_of_a_card_puts_all_its_mig_devices_out(driver: FakeDriver, source: NvmlSource) -> None:
    driver.says(cards=(replace(MIG_CARD, ecc_errors=1),))
    assert ["ECC" in device.fault for device in source.snapshot().devices] == [True, True]


def test_a_card_in_mig_mode_without_devices_is_said(
    driver: FakeDriver, source: NvmlSource, caplog: pytest.LogCaptureFixture
) -> None:
    driver.says(cards=(replace(MIG_CARD, mig=()),))
    assert uuids(source) == []
    assert warnings(caplog) == ["card GPU-cut is in MIG mode and has no MIG devices: it takes no pods"]


@pytest.mark.parametrize(("setting_mib", "slots", "text"), [(0, 1, "to one pod at a time"), (98_304, 10, "98304 MiB")])
def test_a_card_without_memory_of_its_own_is_given_as_a_whole_or_with_the_memory_that_a_setting_states(
    driver: FakeDriver, caplog: pytest.LogCaptureFixture, setting_mib: int, slots: int, text: str
) -> None:
    """As in GB10 and Jetson, which share the processor's."""
    driver.card(0, memory_mib=None)
    source = NvmlSource(unified_memory_mib=setting_mib)
    source.open()
    cards = node_cards(source.snapshot(), "node-a", NodeConfig(split_count=10))
    source.snapshot()
    (warning,) = warnings(caplog)
    source.close()
    card = next(each for each in cards if each.uuid == "GPU-00000000")
    assert (card.healthy, card.capacity.number) == (True, slots)
    assert card.capacity.memory_mib == setting_mib or not setting_mib
    assert card.capacity.memory_mib > 0
    assert text in warning


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"uuid": "MIG-GPU-0/1/0"}, "its UUID is not a valid object name"),
    ],
)
def test_a_card_that_can_not_be_in_the_ledger_is_left_out_and_said_once(
    driver: FakeDriver,
    source: NvmlSource,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, object],
    text: str,
) -> None:
    driver.card(0, **changes)
    assert uuids(source) == uuids(source) == ["GPU-00000001"]
    (warning,) = warnings(caplog)
    assert text in warning


@pytest.mark.parametrize("call", ["*", "nvmlDeviceGetMemoryInfo"])
def test_a_card_that_stops_answering_stays_listed_with_its_fault_and_comes_back(
    driver: FakeDriver, source: NvmlSource, call: str
) -> None:
    before = source.snapshot()
    driver.says(failures=(Failure(LOST, call, card="GPU-00000000"),))
    lost, other = source.snapshot().devices
    failure = CardFailure(FaultClass.LOST, "")
    assert lost == replace(before.devices[0], fault="does not answer: GPU is lost", failure=failure)
    assert other == before.devices[1]
    driver.says(failures=())
    assert source.snapshot() == before


def test_a_card_that_was_never_read_keeps_no_other_from_being_listed_and_is_found_later(
    driver: FakeDriver, source: NvmlSource, caplog: pytest.LogCaptureFixture
) -> None:
    driver.says(failures=(Failure(LOST, card="GPU-00000000"),))
    assert uuids(source) == ["GPU-00000001"]
    assert warnings(caplog) == ["card number 0 is left out because it can't be read: GPU is lost"]
    driver.says(failures=())
    assert uuids(source) == ["GPU-00000000", "GPU-00000001"]


@pytest.mark.parametrize("known", [True, False])
def test_nvml_is_opened_anew_for_a_missing_card_less_and_less_often(
    driver: FakeDriver, source: NvmlSource, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Whether it is one that was listed and has vanished, or one that is listed and could never be read."""
    if known:
        source.snapshot()
        driver.says(cards=driver.state.cards[:1])
    else:
        driver.says(failures=(Failure(LOST, card="GPU-00000001"),))
    looks: list[int] = []
    opened: list[int] = []
    really_open = source.open

    def open_anew() -> None:
        opened.append(len(looks))
        really_open()

    monkeypatch.setattr(source, "open", open_anew)
    while len(looks) < 61:
        looks.append(1)
        source.snapshot()
    assert opened == [2, 3, 5, 9, 17, 21, 33, 41, 61]
    driver.says(cards=some_cards(2), failures=())
    assert len(uuids(source)) == 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"remap_pending": 1}, "contained: a row of its memory is to be remapped"),
        ({"remap_failed": 1, "remap_pending": 1}, "reset: remapping a row of its memory failed"),
        ({"remap_pending": None, "retired_pending": 1}, "contained: pages of its memory are to be retired"),
        ({"ecc_errors": 3}, "contained: uncorrectable ECC errors"),
        ({"recovery_action": pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET}, "reset: the driver asks for a reset of the"),
        ({"recovery_action": pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT}, "reset: the driver asks for a restart"),
        ({"recovery_action": pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET}, "contained: the driver asks for a res"),
    ],
)
def test_a_card_whose_memory_is_damaged_is_out_until_that_is_mended(
    driver: FakeDriver, source: NvmlSource, changes: dict[str, int], text: str
) -> None:
    driver.card(1, **changes)
    healthy, damaged = source.snapshot().devices
    assert healthy.fault == ""
    assert damaged.failure is not None
    assert f"{damaged.failure.fault_class}: {damaged.fault}".startswith(text)
    driver.says(cards=some_cards(2))
    assert {device.fault for device in source.snapshot().devices} == {""}


@pytest.mark.parametrize(("action", "needs_reset"), [(None, None), (0, False), (1, True), (2, True), (3, False)])
def test_a_driver_that_can_tell_says_whether_a_card_needs_a_reset(
    driver: FakeDriver, source: NvmlSource, action: int | None, needs_reset: bool | None
) -> None:
    driver.card(0, recovery_action=action)
    assert source.snapshot().devices[0].needs_reset is needs_reset


def test_links_of_the_others_stay_when_a_card_stops_answering(driver: FakeDriver, source: NvmlSource) -> None:
    cards = some_cards(3)
    driver.says(cards=cards, pairs=all_pairs(cards, ancestor=10))
    before = source.snapshot()
    driver.says(failures=(Failure(LOST, card=cards[0].uuid),))
    assert [device.links for device in source.snapshot().devices] == [device.links for device in before.devices]


def test_a_process_is_told_once_for_each_card_whatever_lists_it_is_in(driver: FakeDriver, source: NvmlSource) -> None:
    driver.says(
        cards=(*some_cards(2), MIG_CARD),
        processes=(
            Process("GPU-00000000", 100, 500),
            Process("GPU-00000000", 100, 700, kind="graphics"),
            Process("GPU-00000001", 100, 20, kind="mps"),
            Process("GPU-00000001", 200, None),
            Process("MIG-a", 300, 1000),
        ),
    )
    source.snapshot()
    assert set(source.uses().processes) == {
        DeviceProcess(100, "GPU-00000000", 700, 0),
        DeviceProcess(100, "GPU-00000001", 20, 0),
        DeviceProcess(200, "GPU-00000001", None, 0),
        DeviceProcess(300, "MIG-a", 1000, 0),
    }


def test_what_is_used_of_a_card_is_told_and_what_a_driver_lacks_is_none(driver: FakeDriver, source: NvmlSource) -> None:
    busy = replace(some_cards(1)[0], memory_used_mib=1200, cores_percent=37, memory_controller_percent=5)
    driver.says(
        cards=(busy, some_cards(2)[1], MIG_CARD),
        processes=(
            Process(busy.uuid, 100, 700, cores_percent=30),
            Process(busy.uuid, 200, 100),
            Process("GPU-00000001", 300, 20),
        ),
    )
    source.snapshot()
    uses = source.uses()
    assert uses.cards == (
        CardUse(busy.uuid, 1200, 37, 5),
        CardUse("GPU-00000001", 0, None, None),
        CardUse("MIG-a", 0, None, None),
        CardUse("MIG-b", 0, None, None),
    )
    assert {process.pid: process.cores_percent for process in uses.processes} == {100: 30, 200: 0, 300: 0}
    driver.says(failures=(Failure(NOT_SUPPORTED, "nvmlDeviceGetProcessUtilization"),))
    assert {process.cores_percent for process in source.uses().processes} == {None}


def test_what_the_driver_keeps_is_not_used_by_anybody(driver: FakeDriver, source: NvmlSource) -> None:
    idle, busy = (replace(card, reserved_mib=480) for card in some_cards(2))
    driver.says(cards=(idle, replace(busy, memory_used_mib=1200)))
    source.snapshot()
    assert [card.memory_mib for card in source.uses().cards] == [0, 1200]
