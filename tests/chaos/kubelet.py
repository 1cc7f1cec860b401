"""Plays the kubelets: shows bound pods as running, lets them end, and brings deletions in good order to their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Self

from chaos.admin import Admin
from chaos.arithmetic import has_ended, has_started, is_bound
from chaos.claims import shares_claims
from chaos.history import Change
from chaos.pods import END_AFTER, RUN, START_AFTER
from chaos.timeline import Timeline
from cluster.cluster import STRATEGIC_PATCH
from control_plane import ControlPlane

Json = dict[str, Any]

COLLECT_AFTER_S = 1.0
"""So long a pod that shared a claim stays after its end, as its Job's `ttlSecondsAfterFinished` would have it."""


class KubeletPlayer:
    """Does to each pod what its annotations say, in a thread of its own: `with KubeletPlayer(plane) as kubelet:`."""

    def __init__(self, plane: ControlPlane) -> None:
        self._admin = Admin(plane)
        self._timeline = Timeline()
        self._is_calm = False
        self._planned: set[tuple[str, str]] = set()  # pod UID and what will be done to it
        self._thread = threading.Thread(target=self._timeline.run, name="kubelets", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timeline.close()
        self._thread.join()
        self._admin.close()

    def calm(self) -> None:
        """Let no pod end by itself any more."""
        self._is_calm = True

    def take(self, change: Change) -> None:
        """See a pod, in the history's thread."""
        pod = change.now
        if change.kind != "pod" or pod is None or not is_bound(pod):
            return
        annotations = pod["metadata"].get("annotations") or {}
        if pod["metadata"].get("deletionTimestamp"):
            self._plan(pod, "end", float(annotations.get(END_AFTER, 0)), self._end)
        elif has_ended(pod):
            # For as long as it stays, kube-controller-manager writes the claim over and over (docs/claims.md).
            if shares_claims(pod):
                self._plan(pod, "collect", COLLECT_AFTER_S, self._end)
        elif not has_started(pod):
            self._plan(pod, "start", float(annotations.get(START_AFTER, 0)), self._start)
        elif RUN in annotations:
            self._plan(pod, "finish", float(annotations[RUN]), self._finish)

    def _plan(self, pod: Json, what: str, wait_s: float, do: Callable[[Json], None]) -> None:
        key = (pod["metadata"]["uid"], what)
        if key not in self._planned:
            self._planned.add(key)
            self._timeline.at(time.monotonic() + wait_s, lambda: do(pod))

    def _start(self, pod: Json) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True"}  # budgets count such pods
        self._set_status(pod, {"phase": "Running", "startTime": now, "conditions": [ready]})

    def _finish(self, pod: Json) -> None:
        if not self._is_calm:
            self._set_status(pod, {"phase": "Succeeded"})

    def _end(self, pod: Json) -> None:
        if has_started(pod) and not has_ended(pod):
            self._set_status(pod, {"phase": "Failed"})
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._admin.try_to("DELETE", _path(pod), options)

    def _set_status(self, pod: Json, status: Json) -> None:
        """Write a status, unless the pod is gone or another one by now."""
        change = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        self._admin.try_to("PATCH", f"{_path(pod)}/status", change, STRATEGIC_PATCH)


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
