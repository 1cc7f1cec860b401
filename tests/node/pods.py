"""Pods for the real node, and what tests wait for in them."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from control_plane import ControlPlane
from local_node import Node
from node_image import BUSYBOX_IMAGE

POLL_INTERVAL_S = 0.1
TIMEOUT_S = 60.0
STAY = "trap 'exit 0' TERM; sleep 86400 & wait"
"""A script that goes on until it is asked to end, and then ends at once."""


def a_pod(
    name: str,
    script: str = STAY,
    env: Mapping[str, str] | None = None,
    restart: str = "Never",
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod with one container, `main`, which runs a script of busybox's shell."""
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
    }
    usual = {"hostNetwork": True, "restartPolicy": restart, "terminationGracePeriodSeconds": 2}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**usual, "containers": [container], **spec},
    }


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(POLL_INTERVAL_S)


class Pods:
    """A namespace of its own, in which a test makes its pods."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        plane.kubectl("create", "namespace", namespace)
        wait_for(self._has_account, f"the default service account of {namespace}")

    def create(self, *pods: Mapping[str, Any]) -> None:
        """Create pods in one request each, all at once."""
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
        self.kubectl("create", "-f", "-", stdin=content)

    def all(self) -> dict[str, dict[str, Any]]:
        """Return all pods: name -> pod."""
        items = json.loads(self.kubectl("get", "pods", "--output=json"))["items"]
        return {item["metadata"]["name"]: item for item in items}

    def statuses(self, name: str) -> list[dict[str, Any]]:
        """Return the status of each container of a pod."""
        return list(self.all()[name]["status"].get("containerStatuses", []))

    def wait_for_phase(self, phase: str, names: Sequence[str] = (), timeout_s: float = TIMEOUT_S) -> None:
        """Wait until all pods, or those that are named, have a phase, and all containers of running ones are ready."""

        def late() -> dict[str, Any]:
            pods = self.all()
            return {name: pods[name]["status"] for name in names or pods if not _is_in(phase, pods[name])}

        deadline = time.monotonic() + timeout_s
        while waiting := late():
            assert time.monotonic() < deadline, f"not {phase} after {timeout_s:g} s: {json.dumps(waiting, indent=1)}"
            time.sleep(POLL_INTERVAL_S)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in this namespace."""
        return self.plane.kubectl(*arguments, "--namespace", self.namespace, stdin=stdin)

    def environment(self, node: Node, name: str, container: str = "main") -> dict[str, str]:
        """Return the environment that a running container was started with."""
        return node.container_environment(self.namespace, name, container)

    def log(self, node: Node, name: str, container: str = "main") -> str:
        """Return what a container has printed."""
        return node.container_log(self.namespace, name, container)

    def delete(self) -> None:
        """Delete all pods and wait until they are gone; the namespace follows by itself."""
        self.kubectl("delete", "pods", "--all", "--wait=true")
        self.plane.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def _has_account(self) -> bool:
        return bool(self.kubectl("get", "serviceaccounts", "default", "--ignore-not-found", "--output=name"))


def _is_in(phase: str, pod: Mapping[str, Any]) -> bool:
    status = pod["status"]
    ready = all(container["ready"] for container in status.get("containerStatuses", []))
    return bool(status.get("phase") == phase and (ready or phase != "Running"))
