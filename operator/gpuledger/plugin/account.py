"""The way to the cluster where there is no kubectl, as in the operator's own image: by a client in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from gpuledger.formats.custom_resource.resource import API_VERSION, PLURAL
from gpuledger.plugin.kubectl import with_query

Json = dict[str, Any]

POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Answer:
    """A request that is sent when its answer is wanted."""

    def __init__(self, account: Account, path: str) -> None:
        self._account, self._path = account, path

    def pieces(self) -> Iterator[bytes]:
        """Yield the answer, in one piece. Raises as `result`."""
        yield self.result()

    def result(self) -> bytes:
        """Return the answer. Raises BadInput without credentials, or a subclass of ApiError."""
        return orjson.dumps(self._account.request("GET", self._path))


class Account:
    """A kubeconfig's user; without one, the service account of the pod that this runs in."""

    def __init__(self, kubeconfig: str | None) -> None:
        self.kubeconfig = Path(kubeconfig) if kubeconfig else None

    def begin(self, path: str, parameters: Json | None = None) -> Answer:
        """Name what is to be read; `result` of what this returns reads it."""
        return Answer(self, with_query(path, parameters))

    def read(self, path: str, parameters: Json | None = None) -> Json:
        """Return the object at a path of the API. Raises as `Answer.result`."""
        return self.request("GET", with_query(path, parameters))

    def patch_card(self, name: str, change: Json) -> Json:
        """Merge a change into a GPUAllocation and return it. Raises as `Answer.result`."""
        return self.request("PATCH", f"/apis/{API_VERSION}/{PLURAL}/{name}", change)

    def namespace(self) -> str:
        """Return the namespace of the pod."""
        return POD_NAMESPACE.read_text().strip() if POD_NAMESPACE.exists() else "default"

    def request(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send one request over a connection of its own."""
        from gpuledger.kube_api.client import KubeClient  # half a second, for those without kubectl alone
        from gpuledger.kube_api.writes import MERGE_PATCH

        async def send() -> Json:
            client = await KubeClient.connect(self.kubeconfig)
            try:
                return await client.request(method, path, body, content_type=MERGE_PATCH, timeout_s=60.0)
            finally:
                await client.close()

        return asyncio.run(send())
