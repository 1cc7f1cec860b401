"""Marked work is done, again if it was marked meanwhile, and never twice at once for a key."""

import asyncio
from collections import Counter

import pytest

from fakes.virtual_time import now_s, settle
from gpuledger.workflows.tasks import FIRST_RETRY_S, LONGEST_RETRY_S, KeyedWorker


class Work:
    """Counts its runs; each waits for the gate, and fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self.gate = asyncio.Event()
        self.runs: Counter[str] = Counter()
        self.times: list[float] = []
        self.now = 0
        self.most = 0
        self.failures = failures

    async def __call__(self, key: str) -> None:
        self.runs[key] += 1
        self.times.append(now_s())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.gate.wait()
            if self.failures:
                self.failures -= 1
                raise RuntimeError("not yet")
        finally:
            self.now -= 1


async def test_work_marked_several_times_before_it_starts_runs_once() -> None:
    work = Work()
    work.gate.set()
    worker = KeyedWorker(work, parallel=2)
    for key in ("a", "a", "b"):
        worker.mark(key)
    await worker.idle()
    assert work.runs == {"a": 1, "b": 1}


async def test_work_marked_during_a_run_runs_once_more_and_not_beside_it() -> None:
    work = Work()
    worker = KeyedWorker(work, parallel=9)
    worker.mark("a")
    await settle()
    for _ in range(3):
        worker.mark("a")
    await settle()
    assert work.runs == {"a": 1}
    work.gate.set()
    await worker.idle()
    assert work.runs == {"a": 2}
    assert work.most == 1


async def test_work_marked_after_a_run_runs_again() -> None:
    work = Work()
    work.gate.set()
    worker = KeyedWorker(work, parallel=1)
    for _ in range(2):
        worker.mark("a")
        await worker.idle()
    assert work.runs == {"a": 2}


async def test_work_that_fails_is_tried_again_after_growing_pauses() -> None:
    work = Work(failures=12)
    work.gate.set()
    worker = KeyedWorker(work, parallel=1)
    worker.mark("a")
    await worker.idle()
    pauses = [later - earlier for earlier, later in zip(work.times, work.times[1:], strict=False)]
    assert pauses[:3] == pytest.approx([FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S])
    assert pauses[-1] == pytest.approx(LONGEST_RETRY_S)
    assert len(pauses) == 12


async def test_work_that_fails_holds_no_other_key_up() -> None:
    async def work(key: str) -> None:
        done.append(key)
        if key == "bad":
            raise RuntimeError

    done: list[str] = []
    worker = KeyedWorker(work, parallel=1)
    worker.mark("bad")
    worker.mark("good")
    await settle()
    assert done == ["bad", "good"]
    await worker.stop()


async def test_no_more_keys_than_allowed_run_at_once() -> None:
    work = Work()
    worker = KeyedWorker(work, parallel=3)
    for number in range(10):
        worker.mark(str(number))
    await settle()
    assert work.now == 3
    work.gate.set()
    await worker.idle()
    assert (work.most, work.runs.total()) == (3, 10)


async def test_stopping_drops_what_is_not_done() -> None:
    work = Work()
    worker = KeyedWorker(work, parallel=1)
    worker.mark("running")
    worker.mark("waiting")
    await settle()
    await worker.stop()
    await worker.idle()
    assert work.runs == {"running": 1}


async def test_what_is_marked_while_not_active_is_never_done() -> None:
    work, active = Work(), False
    work.gate.set()
    worker = KeyedWorker(work, parallel=1, is_active=lambda: active)
    worker.mark("a")
    active = True
    worker.mark("b")
    await worker.idle()
    assert work.runs == {"b": 1}


async def test_whoever_is_not_active_any_more_begins_nothing_and_repeats_nothing() -> None:
    work, active = Work(failures=1), True
    worker = KeyedWorker(work, parallel=1, is_active=lambda: active)
    worker.mark("fails")
    worker.mark("waits")
    await settle()
    active = False
    work.gate.set()
    await worker.idle()
    assert work.runs == {"fails": 1}


async def test_who_has_marked_a_thousand_keys_does_not_keep_others_waiting() -> None:
    order: list[str] = []

    async def work(key: str) -> None:
        order.append(key)
        await asyncio.sleep(1.0)

    worker = KeyedWorker(work, parallel=1, group_of=lambda key: key.split("/")[0])
    for number in range(1_000):
        worker.mark(f"crowd/{number}")
    worker.mark("alone/0")
    worker.mark("alone/1")
    await worker.idle()
    assert order[:4] == ["crowd/0", "alone/0", "crowd/1", "alone/1"]
    assert len(order) == len(set(order)) == 1_002
