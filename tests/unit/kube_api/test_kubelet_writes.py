"""What simulated nodes write as their kubelets."""

from typing import Any, cast

from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.writes import MERGE_PATCH, STRATEGIC_PATCH, KubeletWrites
from gpuledger.model.errors import Conflict

NODE = {"kind": "Node", "metadata": {"name": "node-a"}}
STATUS = {"capacity": {"cpu": "128"}}
POD = {"metadata": {"name": "a", "uid": "u", "namespace": "team"}}


class Sent:
    """Stands where KubeClient does, and keeps each request: method, path, body."""

    def __init__(self, exists: bool = False) -> None:
        self._exists = exists
        self.requests: list[tuple[str, str, object]] = []

    async def request(
        self, method: str, path: str, body: object, content_type: str = "application/json"
    ) -> dict[str, Any]:
        assert (method == "PATCH") == (content_type in (MERGE_PATCH, STRATEGIC_PATCH))
        self.requests.append((method, path, body))
        if method == "POST" and self._exists:
            raise Conflict("it exists", 409)
        return {}

    def writes(self) -> KubeletWrites:
        """Return what sends its requests here."""
        return KubeletWrites(cast(KubeClient, self))


async def test_a_new_node_has_its_status_from_the_first_write() -> None:
    sent = Sent()
    await sent.writes().put_node(NODE, STATUS)
    assert sent.requests == [("POST", "/api/v1/nodes", {**NODE, "status": STATUS})]


async def test_a_node_that_exists_is_changed_and_so_is_its_status() -> None:
    """The API server takes a change of both in two requests."""
    sent = Sent(exists=True)
    await sent.writes().put_node(NODE, STATUS)
    assert sent.requests[1:] == [
        ("PATCH", "/api/v1/nodes/node-a", NODE),
        ("PATCH", "/api/v1/nodes/node-a/status", {"status": STATUS}),
    ]


async def test_a_pods_status_is_written_and_an_ended_pod_goes_at_once() -> None:
    sent = Sent()
    await sent.writes().set_pod_status(POD, {"phase": "Failed"})
    await sent.writes().remove_pod(POD)
    assert sent.requests == [
        (
            "PATCH",
            "/api/v1/namespaces/team/pods/a/status",
            {"metadata": {"uid": "u"}, "status": {"phase": "Failed"}},
        ),
        ("DELETE", "/api/v1/namespaces/team/pods/a", {"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}}),
    ]
