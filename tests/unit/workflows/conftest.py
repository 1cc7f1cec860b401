"""The workflows run on a clock of their own: whatever they wait for, no test waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from builders import a_card
from fakes.api_server import ApiServer
from fakes.objects import a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import LOOP_FACTORIES, VirtualTimeLoop


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
def api() -> ApiServer:
    """Return an API server without objects."""
    return ApiServer()


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over one node with two cards; pod `a` wants 4000 MiB of a card."""
    for index in range(2):
        api.put_card(a_card(index))
    api.put_pod(a_pod_object("a"))
    return an_operator(api)
