"""Requests are repeated on a clock of their own: whatever they wait for, no test waits."""

from collections.abc import Callable, Mapping

import pytest

from fakes.virtual_time import LOOP_FACTORIES, VirtualTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], VirtualTimeLoop]]:
    return LOOP_FACTORIES
