"""Parts of the agent that talk to nobody run on a clock of their own: whatever they wait for, no test waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.agent_node import AgentNode
from fakes.virtual_time import LOOP_FACTORIES


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    of_threads = {"kubelet", "devices", "driver_limits", "mps"} & {*item.path.parts}
    real = of_threads or item.path.stem in ("test_health_server", "test_monitor")
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
