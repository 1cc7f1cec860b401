"""The workflows run on a clock of their own: whatever they wait for, no test waits."""

from collections.abc import Callable, Mapping

import pytest

from fakes.api_server import ApiServer
from fakes.virtual_time import LOOP_FACTORIES, LoopDatetime, VirtualTimeLoop
from gpuledger.workflows import release_pod


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], VirtualTimeLoop]]:
    return LOOP_FACTORIES


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """Return an API server without objects."""
    monkeypatch.setattr(release_pod, "datetime", LoopDatetime)
    return ApiServer()
