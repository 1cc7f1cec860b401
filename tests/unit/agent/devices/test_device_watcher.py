"""The thread that asks the driver: what it tells and when, and that nobody waits for it when the driver hangs."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from fakes.nvml.fake_driver import FakeDriver
from fakes.nvml.fake_nvml import GONE, LOST, Failure, Process
from gpuledger.agent.devices import watcher as device_watcher
from gpuledger.agent.devices.health import HealthPolicy, Remembered
from gpuledger.agent.devices.nvml import NvmlSource
from gpuledger.agent.devices.source import (
    Device,
    DeviceProcess,
    DeviceSource,
    DeviceUses,
    DriverGone,
    DriverReplaced,
    Fault,
    LimitRefused,
    MemoryLimit,
    Snapshot,
)
from gpuledger.agent.devices.watcher import DeviceWatcher, FaultMemory
from gpuledger.agent.devices.yaml_source import YamlSource
from gpuledger.model.errors import BadInput

PATIENCE_S = 20.0
NEVER_S = 3600.0


class Told:
    """What the watcher has told, in order."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot | None] = []
        self.threads: set[int] = set()

    def __call__(self, snapshot: Snapshot | None) -> None:
        self.snapshots.append(snapshot)
        self.threads.add(threading.get_ident())

    @property
    def last(self) -> dict[str, str] | None:
        """UUID -> fault, as told last; None: the driver is gone."""
        return faults_in(self.snapshots[-1]) if self.snapshots else {}


def faults_in(snapshot: Snapshot | None) -> dict[str, str] | None:
    """Return UUID -> fault; None: the driver is gone."""
    return None if snapshot is None else {device.uuid: device.fault for device in snapshot.devices}


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watcher, "ROUND_S", 0.05)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - what changes is in another thread, or in the driver
            await asyncio.sleep(0.005)


class CountingSource(NvmlSource):
    """Counts how often it is opened and read."""

    def __init__(self) -> None:
        super().__init__()
        self.openings = self.snapshots = 0

    def open(self) -> None:
        self.openings += 1
        super().open()

    def snapshot(self) -> Snapshot:
        self.snapshots += 1
        return super().snapshot()


@contextlib.asynccontextmanager
async def watching(
    source: DeviceSource,
    told: Told,
    poll_interval_s: float = NEVER_S,
    fault_quiet_s: float = NEVER_S,
    uses_timeout_s: float = PATIENCE_S,
    prompt: bool = False,
    memory: FaultMemory | None = None,
) -> AsyncIterator[DeviceWatcher]:
    watcher = DeviceWatcher(
        source,
        HealthPolicy(fault_quiet_s=fault_quiet_s),
        told,
        poll_interval_s,
        memory,
        retry_interval_s=0.02,
        uses_timeout_s=uses_timeout_s,
        prompt=prompt,
    )
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_cards_are_told_once_in_the_event_loop_and_again_only_when_they_differ(
    driver: FakeDriver, told: Told
) -> None:
    source = CountingSource()
    async with watching(source, told, poll_interval_s=0.01):
        await until(lambda: source.snapshots > 10)
        assert [faults_in(each) for each in told.snapshots] == [{"GPU-00000000": "", "GPU-00000001": ""}]
        driver.card(0, ecc_errors=1)
        await until(lambda: len(told.snapshots) == 2)
        driver.card(0, ecc_errors=0)
        await until(lambda: told.last == {"GPU-00000000": "", "GPU-00000001": ""})
    assert told.threads == {threading.get_ident()}


async def test_a_fault_is_told_at_once_and_the_card_comes_back_when_it_is_over_without_a_poll(
    driver: FakeDriver, told: Told
) -> None:
    async with watching(NvmlSource(), told, fault_quiet_s=0.3):
        await until(lambda: told.last)
        begin = time.monotonic()
        driver.event("GPU-00000001", 94)
        await until(lambda: len(told.snapshots) == 3)
        assert time.monotonic() - begin >= 0.3
        assert list(map(faults_in, told.snapshots)) == [
            {"GPU-00000000": "", "GPU-00000001": ""},
            {"GPU-00000000": "", "GPU-00000001": "Xid 94: contained memory error"},
            {"GPU-00000000": "", "GPU-00000001": ""},
        ]


async def test_a_programs_error_is_told_to_nobody(driver: FakeDriver, told: Told) -> None:
    async with watching(NvmlSource(), told):
        await until(lambda: told.last)
        driver.event("GPU-00000001", 31)
        driver.event("GPU-00000000", 79)
        await until(lambda: len(told.snapshots) == 2)
        assert told.last == {"GPU-00000000": "Xid 79: fallen off the bus", "GPU-00000001": ""}


async def test_a_card_that_is_lost_is_told_at_once_without_a_poll(driver: FakeDriver, told: Told) -> None:
    async with watching(NvmlSource(), told):
        await until(lambda: told.last)
        driver.says(failures=(Failure(LOST, card="GPU-00000000"),))
        await until(lambda: told.last == {"GPU-00000000": "does not answer: GPU is lost", "GPU-00000001": ""})


async def test_a_card_that_is_lost_and_gone_is_shown_until_it_is_back(driver: FakeDriver, told: Told) -> None:
    cards = driver.state.cards
    async with watching(NvmlSource(), told, poll_interval_s=0.01):
        await until(lambda: told.last)
        driver.says(failures=(Failure(LOST, card="GPU-00000000"),))
        await until(lambda: told.last and told.last["GPU-00000000"])
        driver.says(failures=(), cards=cards[1:])
        await until(lambda: told.last and told.last["GPU-00000000"].startswith("lost: "))
        driver.says(cards=cards)
        await until(lambda: told.last == {"GPU-00000000": "", "GPU-00000001": ""})


async def test_a_driver_that_goes_is_told_once_and_again_when_it_is_back(driver: FakeDriver, told: Told) -> None:
    source = CountingSource()
    async with watching(source, told) as watcher:
        await until(lambda: told.last)
        driver.event("GPU-00000001", 79)
        await until(lambda: len(told.snapshots) == 2)
        driver.says(driver_error=GONE)
        await until(lambda: told.last is None and source.openings > 5)
        with pytest.raises(DriverGone):
            await watcher.uses()
        assert len(told.snapshots) == 3
        driver.says(driver_error=None)
        await until(lambda: told.last == {"GPU-00000000": "", "GPU-00000001": ""})
        assert len(told.snapshots) == 4


async def test_a_driver_that_is_not_there_at_the_start_is_waited_for(driver: FakeDriver, told: Told) -> None:
    driver.says(driver_error=GONE)
    async with watching(NvmlSource(), told):
        await until(lambda: told.snapshots == [None])
        driver.says(driver_error=None)
        await until(lambda: told.last)


async def test_processes_are_read_when_asked_for(driver: FakeDriver, told: Told) -> None:
    driver.says(processes=(Process("GPU-00000001", 4711, 500),))
    async with watching(NvmlSource(), told) as watcher:
        answers = await asyncio.gather(*(watcher.uses() for _ in range(5)))
        assert [answer.processes for answer in answers] == [(DeviceProcess(4711, "GPU-00000001", 500, 0),)] * 5


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo", "nvmlEventSetWait_v2", "*"])
async def test_a_driver_that_hangs_blocks_nobody_and_shows_as_a_thread_that_is_not_alive(
    driver: FakeDriver, told: Told, call: str
) -> None:
    async with watching(NvmlSource(), told, poll_interval_s=0.05, uses_timeout_s=0.1) as watcher:
        await until(lambda: told.last)
        begin = watcher.last_alive_s()
        await until(lambda: watcher.last_alive_s() > begin)
        driver.says(hangs=(call,))
        await until(lambda: time.monotonic() - watcher.last_alive_s() > 0.5)
        with pytest.raises(DriverGone, match="has not answered for"):
            await watcher.uses()
        driver.says(hangs=())
        await until(lambda: time.monotonic() - watcher.last_alive_s() < 0.2)
        assert (await answer_of(watcher)).processes == ()
        assert len(told.snapshots) == 1


async def test_a_thread_that_hangs_does_not_keep_the_agent_from_ending(
    driver: FakeDriver, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_watcher, "STOP_TIMEOUT_S", 0.1)
    async with watching(NvmlSource(), told) as watcher:
        await until(lambda: told.last)
        driver.says(hangs=("*",))
        await until(lambda: time.monotonic() - watcher.last_alive_s() > 0.2)
        begin = time.monotonic()
    assert time.monotonic() - begin < PATIENCE_S / 2
    driver.says(hangs=())
    await until(lambda: not any(thread.name == "devices" for thread in threading.enumerate()))


async def answer_of(watcher: DeviceWatcher) -> DeviceUses:
    """Ask until there is an answer in time: the machine may be busy."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(DriverGone):
                return await watcher.uses()


class Scripted:
    """A source of one card that raises and returns what a test says."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.faults: list[Fault] = []
        self.refusal: LimitRefused | None = None
        self.limits: list[MemoryLimit] = []
        self.snapshots = 0
        self.threads: set[int] = set()
        self.closed = 0

    def open(self) -> None:
        self._called()

    def snapshot(self) -> Snapshot:
        self._called()
        self.snapshots += 1
        return Snapshot((Device("GPU-a", 0, "A100", 40_000),))

    def wait_for_faults(self, timeout_s: float) -> Sequence[Fault]:
        self._called()
        time.sleep(0.001)
        return self.faults

    def uses(self) -> DeviceUses:
        self._called()
        return DeviceUses()

    def limit_memory(self, limit: MemoryLimit) -> None:
        self._called()
        if self.refusal is not None:
            raise self.refusal
        self.limits.append(limit)

    def close(self) -> None:
        self.closed += 1

    def _called(self) -> None:
        self.threads.add(threading.get_ident())
        if self.failure is not None:
            raise self.failure


async def test_one_thread_makes_all_calls_and_closes_the_source(told: Told) -> None:
    source = Scripted()
    async with watching(source, told, poll_interval_s=0.01) as watcher:
        await until(lambda: source.snapshots > 3)
        await watcher.uses()
    assert len(source.threads) == 1
    assert source.threads != {threading.get_ident()}
    assert source.closed == 1


class Storm(Scripted):
    """A source of faults without a pause, with a clock: a hundredth of a round passes with each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = [Fault("GPU-a", 79, "Xid 79")] * 64
        self.waits = 0
        self.read_at: list[int] = []  # how many waits had been when the cards were read

    def monotonic(self) -> float:
        return 1_000.0 + self.waits * device_watcher.ROUND_S / 100

    def snapshot(self) -> Snapshot:
        self.read_at.append(self.waits)
        return super().snapshot()

    def wait_for_faults(self, timeout_s: float) -> Sequence[Fault]:
        self.waits += 1
        return super().wait_for_faults(timeout_s)


async def test_a_storm_of_faults_does_not_have_the_cards_read_all_the_time(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Storm()
    monkeypatch.setattr(device_watcher, "time", source)
    async with watching(source, told):
        await until(lambda: len(source.read_at) > 3)
        assert told.last == {"GPU-a": "Xid 79"}
    assert all(99 <= later - earlier <= 101 for earlier, later in pairwise(source.read_at)), source.read_at


@pytest.mark.parametrize("failure", [DriverReplaced("the driver was replaced"), RuntimeError("a mistake")])
async def test_what_only_a_new_process_can_mend_ends_the_watcher(told: Told, failure: Exception) -> None:
    source = Scripted()
    watcher = DeviceWatcher(source, HealthPolicy(), told)
    task = asyncio.create_task(watcher.run())
    await until(lambda: told.last)
    source.failure = failure
    with pytest.raises(type(failure), match=str(failure)):
        async with asyncio.timeout(PATIENCE_S):
            await task
    assert source.closed == 1


async def test_a_file_of_no_use_ends_the_watcher_with_what_is_wrong(told: Told, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        await DeviceWatcher(YamlSource(tmp_path / "absent.yaml"), HealthPolicy(), told).run()
    assert told.snapshots == []


async def test_cards_that_can_not_be_taken_in_end_the_watch(tmp_path: Path) -> None:
    """Else the agent would go on with the cards of before, or with none, and nobody would know why."""

    def refuse(_: Snapshot | None) -> None:
        raise ValueError("a card of an odd form")

    file = tmp_path / "cards.yaml"
    file.write_text("cards: []")
    with pytest.raises(ValueError, match="odd form"):
        async with asyncio.timeout(PATIENCE_S):
            await DeviceWatcher(YamlSource(file), HealthPolicy(), refuse).run()


LIMITS = [MemoryLimit("GPU-a", "/groups/one", 0, 4_000), MemoryLimit("GPU-b", "/groups/one", 0, 2_000)]


async def test_limits_are_set_by_the_thread_in_their_order(told: Told) -> None:
    source = Scripted()
    async with watching(source, told) as watcher:
        await asyncio.gather(watcher.limit_memory(LIMITS, PATIENCE_S), watcher.limit_memory(LIMITS[:1], PATIENCE_S))
    assert source.limits == [*LIMITS, LIMITS[0]]
    assert len(source.threads) == 1


async def test_a_limit_that_is_refused_is_told_and_ends_nothing(told: Told) -> None:
    source = Scripted()
    async with watching(source, told) as watcher:
        source.refusal = LimitRefused("card GPU-a says no")
        with pytest.raises(LimitRefused, match="GPU-a says no"):
            await watcher.limit_memory(LIMITS, PATIENCE_S)
        source.refusal = None
        await watcher.limit_memory(LIMITS, PATIENCE_S)
    assert source.limits == LIMITS


async def test_without_a_driver_no_limit_is_set_and_the_driver_is_tried_again(told: Told) -> None:
    source = Scripted()
    async with watching(source, told) as watcher:
        await until(lambda: told.last is not None and told.last)
        source.failure = DriverGone("it is being upgraded")
        with pytest.raises(DriverGone):
            await watcher.limit_memory(LIMITS, PATIENCE_S)
        await until(lambda: told.last is None)
        with pytest.raises(DriverGone, match="not available"):
            await watcher.limit_memory(LIMITS, PATIENCE_S)
        source.failure = None
        await until(lambda: told.last is not None)
        await watcher.limit_memory(LIMITS, PATIENCE_S)
    assert source.limits == LIMITS


class Held(Scripted):
    """A source whose wait for faults ends when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.held = threading.Event(), threading.Event()

    def wait_for_faults(self, timeout_s: float) -> Sequence[Fault]:
        self.inside.set()
        self.held.wait(PATIENCE_S)
        return ()


async def test_a_limit_that_nobody_waits_for_any_more_is_not_set(told: Told) -> None:
    source = Held()
    async with watching(source, told) as watcher:
        await until(source.inside.is_set)
        with pytest.raises(DriverGone, match=r"not answered for 0\.05 s"):
            await watcher.limit_memory(LIMITS, 0.05)
        source.held.set()
        await watcher.limit_memory(LIMITS[:1], PATIENCE_S)
    assert source.limits == LIMITS[:1]


async def test_a_prompt_thread_lets_no_caller_wait(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Scripted()
    monkeypatch.setattr(device_watcher, "PROMPT_ROUND_S", NEVER_S)
    async with watching(source, told, prompt=True) as watcher:
        for _ in range(3):
            await watcher.limit_memory(LIMITS[:1], PATIENCE_S)
            assert await watcher.uses() == DeviceUses()
        watcher._stop.set()
        watcher._called.set()
    assert source.limits == [LIMITS[0]] * 3


async def test_a_prompt_thread_finds_faults_without_being_called(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Scripted()
    monkeypatch.setattr(device_watcher, "PROMPT_ROUND_S", 0.01)
    async with watching(source, told, prompt=True):
        await until(lambda: told.last)
        source.faults = [Fault("GPU-a", 79, "Xid 79")]
        await until(lambda: told.last == {"GPU-a": "Xid 79"})


class KeptFaults:
    """A memory of faults, in place of the agent's file."""

    def __init__(self) -> None:
        self.kept: tuple[Remembered, ...] = ()
        self.writes = 0

    def load(self) -> tuple[Remembered, ...]:
        return self.kept

    def keep(self, remembered: tuple[Remembered, ...]) -> None:
        self.kept, self.writes = remembered, self.writes + 1


async def test_a_card_that_needs_a_reset_stays_out_over_a_restart_of_the_agent_until_a_person_says_it_was_repaired(
    driver: FakeDriver, told: Told
) -> None:
    memory = KeptFaults()
    out = {"GPU-00000000": "", "GPU-00000001": "Xid 79: fallen off the bus"}
    async with watching(NvmlSource(), told, memory=memory):
        await until(lambda: told.last)
        driver.event("GPU-00000001", 79)
        await until(lambda: told.last == out)
    assert memory.writes == 1
    again = Told()
    async with watching(NvmlSource(), again, poll_interval_s=0.02, memory=memory) as watcher:
        await until(lambda: again.last)
        assert again.last == out
        watcher.repaired(datetime.now(UTC))
        await until(lambda: again.last == {"GPU-00000000": "", "GPU-00000001": ""})
    assert memory.kept == ()
    assert memory.writes == 2
