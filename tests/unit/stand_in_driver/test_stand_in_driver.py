"""The stand-in driver counts as a driver does: by process and card, until the process ends, however it ends."""

from pathlib import Path

import pytest

from stand_in_driver.stand_in_driver import StandInDriver, some_cards

FIRST, SECOND = (card.uuid for card in some_cards(2))


@pytest.fixture
def driver(tmp_path: Path) -> StandInDriver:
    return StandInDriver(tmp_path, some_cards(2))


def test_a_program_sees_what_it_allocates(driver: StandInDriver) -> None:
    assert driver.run("info", "alloc 1000", "info", "nvml", "free", "info", "total") == [
        "info CUDA_SUCCESS free_mib=81620 total_mib=81920",
        "alloc CUDA_SUCCESS mib=1000",
        "info CUDA_SUCCESS free_mib=80620 total_mib=81920",
        "nvml used_mib=1300 total_mib=81920",
        "free CUDA_SUCCESS",
        "info CUDA_SUCCESS free_mib=81620 total_mib=81920",
        "total CUDA_SUCCESS total_mib=81920",
    ]


def test_what_a_card_does_not_have_is_refused_and_the_program_goes_on(driver: StandInDriver) -> None:
    assert driver.run("alloc 81621", "alloc 81620", "alloc 1") == [
        "alloc CUDA_ERROR_OUT_OF_MEMORY mib=81621",
        "alloc CUDA_SUCCESS mib=81620",
        "alloc CUDA_ERROR_OUT_OF_MEMORY mib=1",
    ]


def test_cards_are_counted_each_by_itself(driver: StandInDriver) -> None:
    assert driver.run("alloc 80000", "device 1", "alloc 70000", "info", "device 0", "info") == [
        "alloc CUDA_SUCCESS mib=80000",
        "device CUDA_SUCCESS",
        "alloc CUDA_SUCCESS mib=70000",
        "info CUDA_SUCCESS free_mib=11620 total_mib=81920",
        "device CUDA_SUCCESS",
        "info CUDA_SUCCESS free_mib=1620 total_mib=81920",
    ]


def test_processes_share_a_card_and_nvml_knows_them_all(driver: StandInDriver) -> None:
    with driver.start() as one, driver.start() as other:
        assert one.step("alloc 50000") == "alloc CUDA_SUCCESS mib=50000"
        assert other.step("alloc 50000") == "alloc CUDA_ERROR_OUT_OF_MEMORY mib=50000"
        assert other.step("alloc 10000") == "alloc CUDA_SUCCESS mib=10000"
        seen = set(one.step("processes").split()[1:])
        assert seen == {f"{one.pid}=50300", f"{other.pid}=10300"}
        assert set(other.step("processes").split()[1:]) == seen


def test_what_a_killed_process_had_is_free_at_once(driver: StandInDriver) -> None:
    with driver.start() as victim, driver.start() as other:
        assert victim.step("alloc 80000") == "alloc CUDA_SUCCESS mib=80000"
        victim.kill()
        assert other.step("info") == "info CUDA_SUCCESS free_mib=81620 total_mib=81920"
        assert other.step("processes") == f"processes {other.pid}=300"


@pytest.mark.parametrize(
    ("variable", "value", "devices"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "all", 2),
        ("NVIDIA_VISIBLE_DEVICES", "void", 2),
        ("NVIDIA_VISIBLE_DEVICES", FIRST, 1),
        ("NVIDIA_VISIBLE_DEVICES", f"{SECOND},{FIRST}", 2),
        ("NVIDIA_VISIBLE_DEVICES", "none", 0),
        ("CUDA_VISIBLE_DEVICES", "1", 1),
        ("CUDA_VISIBLE_DEVICES", SECOND, 1),
        ("CUDA_VISIBLE_DEVICES", "1,0", 2),
        ("CUDA_VISIBLE_DEVICES", "0,7,1", 1),
        ("CUDA_VISIBLE_DEVICES", "", 0),
    ],
)
def test_a_program_sees_the_cards_that_it_may(driver: StandInDriver, variable: str, value: str, devices: int) -> None:
    lines = driver.run("device 0", "device 1", **{variable: value})
    assert lines[:1] == (["device CUDA_SUCCESS"] if devices else ["start CUDA_ERROR_NO_DEVICE"])
    assert lines[1:] == ["device CUDA_SUCCESS" if devices == 2 else "device CUDA_ERROR_INVALID_DEVICE"] * bool(devices)


def test_cuda_visible_devices_gives_cards_other_numbers(driver: StandInDriver) -> None:
    with driver.start(CUDA_VISIBLE_DEVICES="1") as of_second, driver.start() as of_both:
        assert of_second.step("alloc 1000") == "alloc CUDA_SUCCESS mib=1000"
        assert of_both.step("info") == "info CUDA_SUCCESS free_mib=81620 total_mib=81920"
        assert of_both.step("device 1") == "device CUDA_SUCCESS"
        assert of_both.step("info") == "info CUDA_SUCCESS free_mib=80320 total_mib=81920"


def test_kernels_take_time_and_count_as_use(driver: StandInDriver) -> None:
    with driver.start() as program:
        milliseconds = int(program.step("launch 20 5000").partition("ms=")[2])
        assert milliseconds >= 100


def test_without_the_directory_there_is_no_driver(driver: StandInDriver) -> None:
    assert driver.run("info", STAND_IN_DRIVER="/nowhere") == ["start CUDA_ERROR_NO_DEVICE"]
