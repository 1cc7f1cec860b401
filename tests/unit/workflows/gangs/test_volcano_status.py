"""What Volcano's PodGroups say of their pods is written, once for each change, where the setting says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import cards_of
from fakes.api_server import ApiServer
from fakes.objects import GPU, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import LoopClock, settle
from gpuledger.formats.kubernetes.gang import OF_WAY, GroupStatus
from gpuledger.model.errors import Conflict, Denied, Invalid, NotFound
from gpuledger.model.gang import GangWay
from gpuledger.workflows.gangs.volcano_status import DENIED_PAUSE_S, PAUSE_S

Json = dict[str, Any]
VOLCANO, COSCHEDULING = OF_WAY[GangWay.VOLCANO], OF_WAY[GangWay.COSCHEDULING]


class Scene:
    """An operator, and the PodGroups of a cluster, which a watch shows as they are written."""

    def __init__(self, api: ApiServer, monkeypatch: pytest.MonkeyPatch, *, is_set: bool = True) -> None:
        self.api = api
        api.put_node(a_node_object("node-a", cards_of("node-a", 4)))
        for card in cards_of("node-a", 4):
            api.put_card(card)
        more = {"volcano_pod_group_status": is_set}
        self.parts = OperatorParts(api, clock=LoopClock(), more=more)
        self.groups = self.parts.workflows.gangs.pod_groups
        self.groups.listing(VOLCANO)(set())
        self.objects: dict[str, Json] = {}
        self.written: list[tuple[str, Json]] = []
        self.errors: list[Exception] = []
        self.takes = True
        monkeypatch.setattr(self.parts.api.store, "set_group_status", self._write)

    async def begin(self) -> None:
        await self.parts.observer.resync()
        await self.parts.idle()

    def show(self, name: str, minimum: int, uid: str = "1", status: Json | None = None) -> None:
        metadata = {"namespace": "default", "name": name, "uid": uid}
        self.objects[name] = {"metadata": metadata, "spec": {"minMember": minimum}, "status": status or {}}
        self.groups.observe(VOLCANO, self.objects[name], False)

    def pod(self, name: str, group: str, phase: str = "Running") -> None:
        """Show a pod that has a node."""
        found = a_pod_object(name, {GPU: "1"}, node_name="node-a", phase=phase)
        found["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group}
        self.api.put_pod(found)
        self.parts.watch()

    async def _write(self, _: str, name: str, uid: str, status: Json) -> Json:
        if self.errors:
            raise self.errors.pop(0)
        assert uid == self.objects[name]["metadata"]["uid"]
        self.written.append((name, status))
        if not self.takes:
            return self.objects[name]
        self.objects[name] = {**self.objects[name], "status": {**self.objects[name]["status"], **status}}
        self.groups.observe(VOLCANO, self.objects[name], False)
        return self.objects[name]


def said(phase: str, running: int = 0, succeeded: int = 0) -> Json:
    return GroupStatus(phase, running, succeeded).as_json()


@pytest.fixture
async def scene(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Scene:
    found = Scene(api, monkeypatch)
    await found.begin()
    return found


async def test_pods_may_be_made_at_once_and_run_when_as_many_have_nodes_as_start_together(scene: Scene) -> None:
    scene.show("job", 2)
    await settle()
    assert scene.written == [("job", said("Inqueue"))]
    scene.pod("a", "job")
    scene.pod("b", "job")
    await asyncio.sleep(2 * PAUSE_S)
    assert scene.written[1:] == [("job", said("Running", 2))]


async def test_pods_that_come_one_after_the_other_cost_a_write_in_a_while(scene: Scene) -> None:
    scene.show("job", 4)
    for name in "abcd":
        scene.pod(name, "job")
        await asyncio.sleep(PAUSE_S / 5)
    await asyncio.sleep(2 * PAUSE_S)
    assert scene.written[-1] == ("job", said("Running", 4))
    assert len(scene.written) <= 3


async def test_what_has_done_its_work_is_told_and_nothing_more_is_written(scene: Scene) -> None:
    scene.show("job", 1)
    scene.pod("a", "job")
    await asyncio.sleep(2 * PAUSE_S)
    scene.pod("a", "job", "Succeeded")
    await asyncio.sleep(600)
    assert scene.written[-1] == ("job", said("Completed", 0, 1))
    count = len(scene.written)
    await asyncio.sleep(600)
    assert len(scene.written) == count


async def test_conditions_and_groups_that_say_it_already_are_left_alone(scene: Scene) -> None:
    scene.show("job", 2, status=said("Inqueue") | {"conditions": [{"type": "Unschedulable"}]})
    await settle()
    assert scene.written == []


@pytest.mark.parametrize("error", [NotFound("gone", 404), Conflict("another", 409), Invalid("no", 422)])
async def test_a_group_that_cannot_be_written_stops_nothing(scene: Scene, error: Exception) -> None:
    scene.errors = [error]
    scene.show("gone", 2)
    scene.show("job", 2)
    await settle()
    assert [name for name, _ in scene.written] == ["job"]


async def test_a_definition_that_takes_no_status_is_not_asked_over_and_over(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.takes = False
    scene.show("job", 2)
    await asyncio.sleep(600)
    assert len(scene.written) == 1
    assert "PodGroup default/job of Volcano does not take its status" in caplog.text


async def test_without_permission_it_tries_again_later(scene: Scene) -> None:
    scene.errors = [Denied("no", 403)]
    scene.show("job", 2)
    await asyncio.sleep(DENIED_PAUSE_S + 5)
    assert scene.written == [("job", said("Inqueue"))]


async def test_a_group_that_is_made_anew_is_another_one(scene: Scene) -> None:
    scene.show("job", 2)
    await settle()
    scene.show("job", 2, uid="2")
    await settle()
    assert scene.written == [("job", said("Inqueue"))] * 2
    scene.groups.observe(VOLCANO, scene.objects["job"], True)
    scene.pod("a", "job")
    await asyncio.sleep(600)
    assert len(scene.written) == 2


async def test_other_groups_are_not_written_nor_any_without_the_setting(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(api, monkeypatch, is_set=False)
    await scene.begin()
    scene.show("job", 2)
    await settle()
    assert scene.written == []
    assert not scene.groups.is_followed(GangWay.VOLCANO)


async def test_groups_of_coscheduling_are_their_own_controllers(scene: Scene) -> None:
    metadata = {"namespace": "default", "name": "other", "uid": "1"}
    scene.groups.observe(COSCHEDULING, {"metadata": metadata, "spec": {"minMember": 2}}, False)
    await settle()
    assert scene.written == []
    assert scene.groups.is_followed(GangWay.VOLCANO), "also before a pod names one"


@pytest.mark.parametrize("status", [None, 7, [], {"phase": 3, "running": "x", "succeeded": None}])
def test_a_status_that_nobody_would_write_is_read(status: object) -> None:
    assert GroupStatus.of({"status": status}).running == 0
