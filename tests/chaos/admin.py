"""An administrator's requests to the API server, past all proxies, repeated while it is away."""

from __future__ import annotations

import http.client
import time
from typing import Any
from urllib.parse import urlencode

from cluster.cluster import ALLOCATIONS, MERGE_PATCH, Connection, RequestFailed
from control_plane import ControlPlane

Json = dict[str, Any]

PATIENCE_S = 120.0
"""How long the API server may be away before a request fails: it is killed and started again on a busy machine."""

PAUSE_S = 0.2
TIMEOUT_S = 5.0
"""Of one attempt. While etcd is away the API server says nothing."""

PAGE = 500
AWAY = (OSError, http.client.HTTPException, ValueError)
"""What a request raises while the API server is killed. A ValueError: half an answer."""

TOO_LARGE = "larger than max", "too large"
"""What etcd says of an object, by an answer 500 of the API server. Asked again, it says the same."""


class Admin:
    """One connection, for one thread."""

    def __init__(self, plane: ControlPlane) -> None:
        self._connection = Connection(plane, timeout_s=TIMEOUT_S)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Json:
        """Send a request until the API server answers. Raises RequestFailed for a clear no.

        It may be carried out more than once: who creates must expect a 409, who deletes a 404.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._connection.request(method, path, body, content_type)
            except RequestFailed as error:
                if _is_final(error) or time.monotonic() > deadline:
                    raise
            except AWAY:
                self._connection.close()
                if time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_S)

    def try_to(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> int:
        """Send a request, and return 0 if it was carried out, or the status with which the API server refused it."""
        try:
            self.request(method, path, body, content_type)
        except RequestFailed as error:
            return error.status
        return 0

    def patch(self, path: str, change: object) -> int:
        """Send a merge patch; return 0, or the status of a refusal."""
        return self.try_to("PATCH", path, change, MERGE_PATCH)

    def all(self, path: str) -> list[Json]:
        """Return all objects of a list."""
        found: list[Json] = []
        query = {"limit": str(PAGE)}
        while True:
            page = self.request("GET", f"{path}?{urlencode(query)}")
            found += page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return found
            query["continue"] = token

    def pods(self) -> dict[str, Json]:
        """Return pod UID -> pod, of our scheduler profile, in all namespaces."""
        return {
            found["metadata"]["uid"]: found
            for found in self.all("/api/v1/pods")
            if found["spec"].get("schedulerName") == "gpuledger"
        }

    def cards(self) -> dict[str, Json]:
        """Return card UUID -> card."""
        return {found["spec"]["uuid"]: found for found in self.all(ALLOCATIONS)}

    def nodes(self) -> dict[str, Json]:
        """Return node name -> node."""
        return {found["metadata"]["name"]: found for found in self.all("/api/v1/nodes")}


def _is_final(error: RequestFailed) -> bool:
    """Return whether the API server will not think better of it."""
    if error.status >= 500:
        return any(words in str(error) for words in TOO_LARGE)
    return error.status != 429
