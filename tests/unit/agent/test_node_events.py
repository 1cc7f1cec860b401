"""Events about the node: one that has a key is posted once, whoever posts it."""

import asyncio
import logging
from typing import Any

import pytest

from gpuledger.agent.agent import NodeEvents
from gpuledger.kube_api.writes import KubeWrites
from gpuledger.model.errors import ApiError, Conflict, EventReason, Unreachable


class Store(KubeWrites):
    """Keeps Events by their names."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.error: ApiError | None = None

    async def create_event(self, event: dict[str, Any]) -> None:
        if self.error:
            raise self.error
        name = event["metadata"].get("name")
        if name and any(each["metadata"].get("name") == name for each in self.events):
            raise Conflict("exists", 409)
        self.events.append(event)


async def posted(store: Store, key: str, times: int = 2) -> list[dict[str, Any]]:
    for _ in range(times):
        events = NodeEvents("node-a", store)  # an agent that has started again
        events.post(EventReason.MPS_FAULT, "it is so", key)
        while events._tasks:
            await asyncio.wait(events._tasks)
    return store.events


async def test_one_with_a_key_is_posted_once() -> None:
    (event,) = await posted(Store(), "1")
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("node-a.")
    assert (event["reason"], event["message"], event["type"]) == ("MPSFault", "it is so", "Warning")


async def test_keys_differ_and_one_without_is_posted_each_time() -> None:
    store = Store()
    await posted(store, "1")
    assert len(await posted(store, "2")) == 2
    assert len(await posted(store, "")) == 4


async def test_an_api_server_that_is_away_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    store.error = Unreachable("no answer")
    with caplog.at_level(logging.WARNING):
        assert await posted(store, "1") == []
    assert "the Event could not be created: no answer" in caplog.text
