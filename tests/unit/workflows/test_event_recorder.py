"""What a person should know is posted once, where kubectl shows it, and keeps nothing else from its work."""

import asyncio
from typing import Any, cast

from gpuledger.kube_api.writes import KubeWrites
from gpuledger.model.errors import EventReason, NotFound
from gpuledger.model.share import Pod
from gpuledger.workflows.reporting import POSTS_AT_ONCE, EventRecorder
from gpuledger.workflows.system_clock import SystemClock

POD = Pod("uid-a", "team", "a")


class Client:
    """Keeps what is posted."""

    def __init__(self, error: Exception | None = None) -> None:
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.at_once = self.most_at_once = 0
        self._error = error

    async def request(self, method: str, path: str, body: dict[str, Any]) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.posted.append((f"{method} {path}", body))
        if self._error:
            raise self._error


def events(client: Client) -> EventRecorder:
    return EventRecorder(KubeWrites(cast(Any, client)), SystemClock())


async def posted(told: EventRecorder) -> None:
    while told._tasks:
        await asyncio.wait(told._tasks)


async def test_a_pods_event_is_in_its_namespace_and_about_its_uid() -> None:
    client = Client()
    told = events(client)
    told.post_pod_event(POD, True, EventReason.UNHEALTHY, "it fell off the bus")
    told.post_pod_event(POD, False, EventReason.HEALTHY, "it works again")
    await posted(told)
    assert [request for request, _ in client.posted] == ["POST /api/v1/namespaces/team/events"] * 2
    first, second = (body for _, body in client.posted)
    assert first["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "a",
        "uid": "uid-a",
    }
    assert [(e["type"], e["reason"], e["message"]) for e in (first, second)] == [
        ("Warning", "GPUUnhealthy", "it fell off the bus"),
        ("Normal", "GPUHealthy", "it works again"),
    ]


async def test_a_nodes_event_is_where_the_kubelets_are() -> None:
    client = Client()
    told = events(client)
    told.post_node_event("node-a", "x" * 5000)
    await posted(told)
    ((request, body),) = client.posted
    assert request == "POST /api/v1/namespaces/default/events"
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}
    assert (body["reason"], len(body["message"])) == ("BadGPUInventory", 1024)


async def test_an_event_that_is_refused_is_not_tried_again() -> None:
    client = Client(NotFound("no such namespace", 404))
    told = events(client)
    told.post_pod_event(POD, True, EventReason.UNHEALTHY, "")
    await posted(told)
    assert len(client.posted) == 1


async def test_a_node_that_loses_all_cards_does_not_flood_the_api_server() -> None:
    client = Client()
    told = events(client)
    for _ in range(200):
        told.post_pod_event(POD, True, EventReason.UNHEALTHY, "")
    await posted(told)
    assert (len(client.posted), client.most_at_once) == (200, POSTS_AT_ONCE)
