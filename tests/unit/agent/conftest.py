"""Parts of the agent that talk to nobody run on a clock of their own: whatever they wait for, no test waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.agent_node import AgentNode
from fakes.virtual_time import LOOP_FACTORIES

OF_THREADS_AND_PROGRAMS = (
    *("test_daemon_state", "test_daemons", "test_shared_memory", "test_view", "test_hook", "test_limiter"),
    *("test_health_server", "test_monitor"),
)
"""Tests of what waits for threads or other programs, which have a clock of their own."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    real = {"kubelet", "devices"} & {*item.path.parts} or item.path.stem in OF_THREADS_AND_PROGRAMS
    return {"real time": asyncio.SelectorEventLoop} if real else LOOP_FACTORIES


@pytest.fixture(autouse=True)
async def no_callback_fails() -> AsyncIterator[None]:
    """Fail when a timer or a task fails that nobody waits for: asyncio only logs that."""
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    yield
    assert failed == []


@pytest.fixture
def node(tmp_path: Path) -> AgentNode:
    """Return a node with four cards, and an agent that has just started."""
    return AgentNode(tmp_path)
