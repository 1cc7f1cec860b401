"""Requests through the socket of a `kubectl proxy`, by the standard library alone.

For commands that ask one thing and end: aiohttp takes 0.14 s to import, which is most of the time that they have.
"""

from __future__ import annotations

import codecs
import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlencode

import orjson

from gpuledger import __version__
from gpuledger.kube_api.answers import asked_wait_s, kind_of, message_of, read_json
from gpuledger.model.errors import ApiError, Unreachable
from gpuledger.model.json_object import Json

PIECE_BYTES = 1024 * 1024
"""Of a list: while the next piece is on its way, the objects of this one are read, and only these are in memory."""

ITEMS = re.compile(r'"items"\s*:\s*\[')
"""No other field of a List's own has this name, or a text that the API server does not choose."""
BETWEEN = re.compile(r"[\s,]*")

TOO_MANY_REQUESTS = 429
TRIES, LONGEST_WAIT_S = 5, 5.0
"""For a list, as kubectl itself does."""

ASK_WHERE = "Is the right cluster named? --kubeconfig, --context"


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
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """Send one request, return the object in its answer. Raises a subclass of ApiError, in kubectl's words."""
        with self._answer(method, path, body, content_type, parameters, headers) as response:
            found: Json = read_json(response.read())
            return found

    def items(self, path: str, parameters: Mapping[str, str] | None = None) -> Iterator[list[Json]]:
        """Yield the objects of a list as they come, some at a time. Raises as `request`.

        An API server that asks for a moment gets it: it reads a kind for the first time since its start, for example.
        """
        for left in reversed(range(TRIES)):
            try:
                with self._answer("GET", path, None, "", parameters) as response:
                    yield from items_of(iter(lambda: response.read1(PIECE_BYTES), b""))
                    return
            except ApiError as error:
                if error.status != TOO_MANY_REQUESTS or not left:
                    raise
                time.sleep(error.retry_after_s or 1.0)

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: object,
        content_type: str,
        parameters: Mapping[str, str] | None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _Connection(self._path)
        try:
            # Without Accept-Encoding: kubectl then has the answer packed, and unpacks it on a core of its own.
            connection.putrequest(
                method, f"{path}?{urlencode(parameters)}" if parameters else path, skip_accept_encoding=True
            )
            connection.putheader("Accept", "application/json")
            connection.putheader("User-Agent", f"gpuledger/{__version__}")  # the name in metadata.managedFields, too
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            content = None if body is None else orjson.dumps(body)
            if content is not None:
                connection.putheader("Content-Type", content_type)
                connection.putheader("Content-Length", str(len(content)))
            connection.endheaders(content)
            response = connection.getresponse()
            if response.status >= 300:
                raise _error(response.status, response.read(), response.headers.get("Retry-After"))
            yield response
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: what is no JSON
            raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}. {ASK_WHERE}") from error
        finally:
            connection.close()


def items_of(pieces: Iterable[bytes]) -> Iterator[list[Json]]:
    """Yield the items of a List that comes in pieces, those that each piece completes.

    Raises ValueError if it is no List, or does not come to its end.
    """
    decode, characters = json.JSONDecoder().raw_decode, codecs.getincrementaldecoder("utf-8")()
    text, at, begun = "", 0, False
    for piece in pieces:
        text, at = text[at:] + characters.decode(piece), 0
        if not begun:
            begin = ITEMS.search(text)
            if begin is None:
                continue
            at, begun = begin.end(), True
        found: list[Json] = []
        while True:
            at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
            if text.startswith("]", at):
                yield found
                return
            try:
                item, at = decode(text, at)
            except json.JSONDecodeError:  # the rest of it is to come
                break
            found.append(item)
        yield found
    if begun:
        raise ValueError("the list does not come to its end")
    yield json.loads(text).get("items") or []  # null, where there are none


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")  # kubectl refuses other names
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def _error(status: int, answer: bytes, retry_after: str | None) -> ApiError:
    wait_s = asked_wait_s(retry_after, LONGEST_WAIT_S)
    try:
        found = orjson.loads(answer)
        text = f"Error from server ({found['reason']}): {message_of(found)}"
        return kind_of(status, found)(text, status, wait_s)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        said = " ".join(answer[:300].decode(errors="replace").split())
    if status >= 500:  # kubectl itself, which did not get there
        return Unreachable(f"{said}. {ASK_WHERE}", status)
    return kind_of(status)(f"Error from server: {said}", status)
