"""The answer of /usage, and how seldom the driver is asked for it."""

import asyncio
from dataclasses import replace
from typing import Any

from builders import a_card
from gpuledger.agent.devices.source import CardUse, DeviceProcess, DeviceUses, DriverGone
from gpuledger.agent.usage import report as report_module
from gpuledger.agent.usage.idle import IdleShares
from gpuledger.agent.usage.monitor import Monitor
from gpuledger.agent.usage.report import REUSED_S, Comparison, UsageReport
from unit.agent.usage.conftest import Node

CARD = replace(a_card(), uuid="GPU-1", index=0)


class Driver:
    """What the driver says, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.gone = False
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.says = DeviceUses((CardUse("GPU-1", 1200, 37),), ())

    async def uses(self) -> DeviceUses:
        self.asked += 1
        await self.hangs.wait()
        if self.gone:
            raise DriverGone("no driver")
        return self.says


async def no_share(*_: str) -> bool:
    return False


def a_report(node: Node, driver: Driver, monitor: Monitor | None = None) -> UsageReport:
    comparison = Comparison(node.grants.values, no_share, lambda _: None, node.root / "proc")
    monitor = monitor or Monitor(node.grants.values, 5.0, node.regions)
    return UsageReport("node-a", node.grants.values, driver.uses, comparison, monitor, IdleShares())


def a_process(node: Node, pid: int, uid: str, memory_mib: int) -> DeviceProcess:
    folder = node.root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::/kubepods/pod{uid}/{'c' * 64}\n")
    return DeviceProcess(pid, "GPU-1", memory_mib, 12)


UID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"


async def test_the_answer_has_each_card_and_each_container_that_holds_a_part(node: Node) -> None:
    driver = Driver()
    node.container("a")
    node.grants["a"] = replace(node.grants["a"], pod_uid=UID)
    driver.says = replace(driver.says, processes=(a_process(node, 7, UID, 700),))
    answer = await a_report(node, driver).answer([CARD, replace(CARD, uuid="GPU-2", index=1)])
    assert answer.pop("at").endswith("Z")
    assert answer == {
        "node": "node-a",
        "cards": [
            {"uuid": "GPU-1", "index": 0, "memoryUsedMiB": 1200, "utilizationPercent": 37},
            {"uuid": "GPU-2", "index": 1, "memoryUsedMiB": None, "utilizationPercent": None},
        ],
        "containers": [
            {
                "namespace": "default",
                "pod": "a",
                "podUID": UID,
                "container": "main",
                "uuid": "GPU-1",
                "memoryHeldMiB": 3000,
                "memoryUsedMiB": 700,
                "memoryLimitMiB": 3000,
                "coresHeld": 30,
                "utilizationPercent": 12,
                "lastKernelSecondsAgo": None,
                "paused": False,
                "source": "nvml",
            }
        ],
    }


async def test_a_region_is_told_as_of_the_monitors_last_pass(node: Node) -> None:
    node.container("high", 0, last_kernel_s=node.now_s)
    node.container("low", 1)
    monitor = Monitor(node.grants.values, 5.0, node.regions)
    monitor.looks = node.regions.look(node.places())
    answer = await a_report(node, Driver(), monitor).answer([CARD])
    low = next(each for each in answer["containers"] if each["pod"] == "low")
    assert (low["paused"], low["source"], low["memoryUsedMiB"], low["utilizationPercent"]) == (True, "region", 100, 7)


async def test_many_who_ask_at_once_or_again_at_once_share_a_look(node: Node) -> None:
    driver = Driver()
    report = a_report(node, driver)
    await asyncio.gather(*(report.answer([CARD]) for _ in range(10)))
    await report.answer([CARD])
    assert driver.asked == 1
    await asyncio.sleep(REUSED_S)
    await report.answer([CARD])
    assert driver.asked == 2


async def test_a_driver_that_hangs_keeps_no_answer_for_long(node: Node) -> None:
    driver = Driver()
    report = a_report(node, driver)
    await report.answer([CARD])
    await asyncio.sleep(REUSED_S)
    driver.hangs.clear()
    begin_s = asyncio.get_running_loop().time()
    answers: list[dict[str, Any]] = [await report.answer([CARD]) for _ in range(2)]
    assert asyncio.get_running_loop().time() - begin_s <= 2 * report_module.ANSWER_S + 1
    assert [each["cards"][0]["memoryUsedMiB"] for each in answers] == [1200, 1200]
    assert driver.asked == 2


async def test_a_driver_that_is_gone_leaves_what_it_told_unknown(node: Node) -> None:
    driver = Driver()
    node.container("a")
    report = a_report(node, driver)
    await report.look()
    driver.gone = True
    await report.look()
    await asyncio.sleep(REUSED_S)
    answer = await report.answer([CARD])
    assert answer["cards"][0]["memoryUsedMiB"] is None
    assert answer["containers"][0]["memoryUsedMiB"] is None
