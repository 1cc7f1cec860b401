"""The workflows run on a clock of their own: whatever they wait for, no test waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from fakes import api_server
from fakes.api_server import ApiServer
from fakes.virtual_time import LOOP_FACTORIES, LoopDatetime, VirtualTimeLoop
from gpuledger.workflows import deadlines
from gpuledger.workflows.preemption import claim_room, pod_lives
from gpuledger.workflows.release import departures


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], VirtualTimeLoop]]:
    return LOOP_FACTORIES


@pytest.fixture(autouse=True)
async def no_callback_fails() -> AsyncIterator[None]:
    """Fail when a timer or a task fails that nobody waits for: asyncio only logs that."""
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    yield
    assert failed == []


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """Return an API server without objects."""
    for reads_wall_clock in (api_server, claim_room, deadlines, departures, pod_lives):
        monkeypatch.setattr(reads_wall_clock, "datetime", LoopDatetime)
    return ApiServer()
