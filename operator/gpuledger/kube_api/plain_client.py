"""Requests through the socket of a `kubectl proxy`, by the standard library alone.

For commands that ask one thing and end: aiohttp takes 0.14 s to import, which is most of the time that they have.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import orjson

from gpuledger import __version__
from gpuledger.kube_api.refusals import kind_of
from gpuledger.model.errors import ApiError, Unreachable

PAGE_SIZE = 1000
"""Objects of a page: while the next one is on its way, this one is read, and only these are in memory."""

ASK_WHERE = "Is the right cluster named? --kubeconfig, --context"

Json = dict[str, Any]


class PlainClient:
    """Each request has a connection of its own to the socket, so threads can share a client."""

    def __init__(self, path: str) -> None:
        """Take the path of the socket."""
        self._path = path

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        parameters: Mapping[str, str] | None = None,
    ) -> Json:
        """Send one request, return the object in its answer. Raises a subclass of ApiError, in kubectl's words."""
        connection = _Connection(self._path)
        try:
            # Without Accept-Encoding: kubectl then has the answer packed, and unpacks it on a core of its own.
            connection.putrequest(
                method, f"{path}?{urlencode(parameters)}" if parameters else path, skip_accept_encoding=True
            )
            content = b"" if body is None else orjson.dumps(body)
            for name, value in {
                "Accept": "application/json",
                "Content-Type": content_type,
                "Content-Length": str(len(content)),
                "User-Agent": f"gpuledger/{__version__}",  # the name in metadata.managedFields, too
            }.items():
                connection.putheader(name, value)
            connection.endheaders(content)
            response = connection.getresponse()
            answer = response.read()
            if response.status >= 300:
                raise _error(response.status, answer)
            found: Json = orjson.loads(answer)
            return found
        except (OSError, http.client.HTTPException, orjson.JSONDecodeError) as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}. {ASK_WHERE}") from error
        finally:
            connection.close()

    def pages(self, path: str, parameters: Mapping[str, str] | None = None) -> Iterator[list[Json]]:
        """Yield the items of a list, page by page, all from one moment of the cluster. Raises as `request`."""
        asked = {"limit": str(PAGE_SIZE), **(parameters or {})}
        while True:
            page = self.request("GET", path, parameters=asked)
            yield page.get("items") or []
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            asked["continue"] = token


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")  # kubectl refuses other names
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def _error(status: int, answer: bytes) -> ApiError:
    try:
        found = orjson.loads(answer)
        return kind_of(status)(f"Error from server ({found['reason']}): {found['message']}", status)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        said = " ".join(answer[:300].decode(errors="replace").split())
    if status >= 500:  # kubectl itself, which did not get there
        return Unreachable(f"{said}. {ASK_WHERE}", status)
    return kind_of(status)(f"Error from server: {said}", status)
