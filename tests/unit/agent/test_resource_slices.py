"""ResourceSlices are written when the cards differ or a slice is gone, and at no other time."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import pytest

from fakes.virtual_time import now_s, settle
from gpuledger.agent import node_entry
from gpuledger.agent.node_entry import ASK_AGAIN_S, LONGEST_PAUSE_S, ResourceSlices
from gpuledger.kube_api.watch import Api
from gpuledger.kube_api.writes import KubeWrites
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import Conflict, NotFound, Unreachable

Json = dict[str, Any]

NAME = "node-a-gpu.gpuledger.dev"
NODE: Json = {"metadata": {"name": "node-a", "uid": "uid-1"}}
CARD = Card("GPU-0", "node-a", 0, Amounts(1000, 100, 10))


class Server(KubeWrites):
    """An API server's slices, and the watch of one node's."""

    def __init__(self) -> None:
        self.slices: dict[str, Json] = {}
        self.writes: list[tuple[str, str, float]] = []  # verb, name, time
        self.versions = itertools.count(100)
        self.drops: tuple[str, ...] = ()  # fields of devices whose feature is off
        self.failures: list[Exception] = []
        self.loses_answer = False  # of the next write
        self.deletes_at_once = False  # the next one that is written
        self.served = True
        self.lists = 0
        self.show: Callable[[Json, bool], None] = lambda found, gone: None
        self.ends = asyncio.Event()

    async def follow(self, api: Api, path: str, selector: Json, changed: Any, listing: Any, while_served: bool) -> None:
        """Stand for the watch: a list, then each change as it is made."""
        assert selector == {"fieldSelector": "spec.nodeName=node-a,spec.driver=gpu.gpuledger.dev"}
        assert while_served
        self.lists += 1
        if not self.served:
            return
        listed = listing()
        for found in self.slices.values():
            changed(deepcopy(found), False)
        listed({found["metadata"]["uid"] for found in self.slices.values()})
        self.show = changed
        self.ends.clear()
        await self.ends.wait()

    async def create_slice(self, body: Json) -> Json:
        """Create one."""
        if body["metadata"]["name"] in self.slices:
            raise Conflict("it exists", 409)
        return await self._write("create", body, {"uid": f"slice-{next(self.versions)}"})

    async def replace_slice(self, body: Json) -> Json:
        """Replace one."""
        known = self.slices.get(body["metadata"]["name"])
        if known is None:
            raise NotFound("gone", 404)
        if known["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict("it has changed", 409)
        return await self._write("replace", body, {"uid": known["metadata"]["uid"]})

    async def delete_slice(self, name: str) -> None:
        """Delete one."""
        if name not in self.slices:
            raise NotFound("gone", 404)
        self.writes.append(("delete", name, now_s()))
        self.delete(name)

    def delete(self, name: str, seen: bool = True) -> None:
        """Have somebody delete a slice."""
        gone = self.slices.pop(name)
        gone["metadata"]["resourceVersion"] = str(next(self.versions))
        if seen:
            self.show(deepcopy(gone), True)

    async def _write(self, verb: str, body: Json, metadata: Json) -> Json:
        name = body["metadata"]["name"]
        self.writes.append((verb, name, now_s()))
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        stored = deepcopy(body)
        stored["metadata"] |= {**metadata, "resourceVersion": str(next(self.versions))}
        for device in stored["spec"]["devices"]:
            for field in self.drops:
                device.pop(field, None)
        self.slices[name] = stored
        if self.deletes_at_once or self.loses_answer:
            self.show(deepcopy(stored), False)
        else:
            asyncio.get_running_loop().call_later(0.01, self.show, deepcopy(stored), False)
        if self.deletes_at_once:
            self.deletes_at_once = False
            self.delete(name)
        if self.loses_answer:
            self.loses_answer = False
            raise Unreachable("the answer is lost")
        return deepcopy(stored)

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.writes]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    monkeypatch.setattr(node_entry, "follow", found.follow)
    return found


async def started(server: Server) -> tuple[ResourceSlices, asyncio.Task[None]]:
    slices = ResourceSlices("node-a", server, cast(Api, None))
    return slices, asyncio.create_task(slices.run())


@pytest.fixture
async def slices(server: Server) -> AsyncIterator[ResourceSlices]:
    found, task = await started(server)
    yield found
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_slices_are_written_once(server: Server, slices: ResourceSlices) -> None:
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(100_000)
    assert (server.verbs, slices.writes) == (["create"], 1)
    assert server.slices[NAME]["spec"]["devices"][0]["name"] == "gpu-0"


async def test_nothing_is_written_before_node_cards_and_slices_are_known(
    server: Server, slices: ResourceSlices
) -> None:
    slices.want((CARD,))
    await asyncio.sleep(100)
    assert server.writes == []
    slices.observe(NODE, False)
    await settle()
    assert server.verbs == ["create"]


async def test_what_is_there_already_is_not_written(server: Server, slices: ResourceSlices) -> None:
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(1)
    second, task = await started(server)
    second.observe(NODE, False)
    second.want((CARD,))
    await asyncio.sleep(3_600)
    task.cancel()
    assert server.verbs == ["create"]


async def test_a_change_is_written_at_once_in_a_new_generation_and_other_changes_are_not(
    server: Server, slices: ResourceSlices
) -> None:
    slices.observe(NODE, False)
    slices.want((CARD,))
    await settle()
    slices.want((replace(CARD, healthy=False, fault="Xid 79"),))
    await settle()
    slices.want((replace(CARD, healthy=False, fault="Xid 48", links={"GPU-1": 100}),))
    await asyncio.sleep(3_600)
    assert server.verbs == ["create", "replace"]
    spec = server.slices[NAME]["spec"]
    assert spec["pool"]["generation"] == 2
    assert [taint["key"] for taint in spec["devices"][0]["taints"]] == ["gpuledger.dev/only", "gpuledger.dev/unhealthy"]


async def test_what_the_kubelet_deletes_comes_back(server: Server, slices: ResourceSlices) -> None:
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(100)
    server.delete(NAME)
    await settle()
    assert server.verbs == ["create", "create"]
    assert server.slices[NAME]["spec"]["pool"]["generation"] == 1


async def test_what_is_deleted_while_the_watch_is_away_comes_back(server: Server, slices: ResourceSlices) -> None:
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(100)
    server.delete(NAME, seen=False)
    listed = slices.listing()
    listed(set())
    await settle()
    assert server.verbs == ["create", "create"]


async def test_a_client_that_deletes_again_and_again_is_answered_later_and_later(
    server: Server, slices: ResourceSlices
) -> None:
    slices.observe(NODE, False)
    slices.want((CARD,))
    until_s = now_s() + 3_600
    while now_s() < until_s:
        await asyncio.sleep(0.5)
        if NAME in server.slices:
            server.delete(NAME)
    times = [at_s for _, _, at_s in server.writes]
    assert len(times) < 3_600 / LONGEST_PAUSE_S + 10
    assert times[1] - times[0] < 3


async def test_an_api_server_that_leaves_out_fields_is_not_written_to_again(
    server: Server, slices: ResourceSlices
) -> None:
    server.drops = ("taints", "allowMultipleAllocations")
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(3_600)
    assert server.verbs == ["create"]
    assert "taints" not in server.slices[NAME]["spec"]["devices"][0]
    slices.want((replace(CARD, index=1),))
    await asyncio.sleep(3_600)
    assert server.verbs == ["create", "replace"]


@pytest.mark.parametrize("failure", [Unreachable("no answer"), Conflict("it exists", 409)])
async def test_a_write_that_fails_is_tried_again_after_a_pause(
    server: Server, slices: ResourceSlices, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    server.failures = [failure]
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(60)
    times = [at_s for _, _, at_s in server.writes]
    assert server.verbs == ["create", "create"]
    assert times[1] - times[0] == pytest.approx(1)
    assert "node node-a: its ResourceSlices can't be written" in caplog.text


async def test_a_write_whose_answer_is_lost_is_not_repeated(server: Server, slices: ResourceSlices) -> None:
    server.loses_answer = True
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(3_600)
    assert server.verbs == ["create"]


async def test_a_slice_that_is_deleted_while_its_creation_is_answered_is_not_taken_to_be_there(
    server: Server, slices: ResourceSlices
) -> None:
    server.deletes_at_once = True
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(60)
    assert server.verbs == ["create", "create"]
    assert NAME in server.slices


async def test_an_old_event_does_not_hide_what_was_written_since(server: Server, slices: ResourceSlices) -> None:
    slices.observe(NODE, False)
    slices.want((CARD,))
    await settle()
    slices.want((replace(CARD, index=1),))
    await settle()  # the event of the first write comes after the second is answered
    await asyncio.sleep(3_600)
    assert server.verbs == ["create", "replace"]


async def test_a_node_that_comes_back_gets_slices_that_it_owns(server: Server, slices: ResourceSlices) -> None:
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(100)
    slices.observe(NODE, True)
    server.delete(NAME)
    await asyncio.sleep(100)
    assert server.slices == {}
    slices.observe({"metadata": {"name": "node-a", "uid": "uid-2"}}, False)
    await settle()
    assert server.slices[NAME]["metadata"]["ownerReferences"][0]["uid"] == "uid-2"


async def test_a_node_without_cards_has_no_slices(server: Server, slices: ResourceSlices) -> None:
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(1)
    slices.want(())
    await asyncio.sleep(3_600)
    assert (server.slices, server.verbs) == ({}, ["create", "delete"])


async def test_an_api_server_without_slices_is_asked_now_and_then_and_that_is_said_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.served = False
    slices, task = await started(server)
    slices.observe(NODE, False)
    slices.want((CARD,))
    await asyncio.sleep(10 * ASK_AGAIN_S - 1)
    assert (server.writes, server.lists) == ([], 10)
    assert caplog.text.count("has no resource.k8s.io/v1") == 1
    server.served = True
    await asyncio.sleep(ASK_AGAIN_S)
    task.cancel()
    assert server.verbs == ["create"]
