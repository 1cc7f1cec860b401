"""A List that is still being sent yields what it holds, wherever it is cut."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.kube_api import plain_client
from gpuledger.kube_api.plain_client import PlainClient, items_of
from gpuledger.model.errors import ApiError

NASTY = 'a text with "items":[{"apiVersion":"gpuledger.dev/v1alpha1"}], in it'


def a_list(texts: list[str], **other: Any) -> tuple[bytes, list[Any]]:
    items = [{"apiVersion": "gpuledger.dev/v1alpha1", "kind": "GPUAllocation", "spec": {"why": text}} for text in texts]
    content = {"apiVersion": "gpuledger.dev/v1alpha1", "items": items, "kind": "GPUAllocationList", **other}
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode() + b"\n", items


@given(st.lists(st.text() | st.just(NASTY), max_size=6), st.lists(st.integers(0, 2_000), max_size=8))
def test_however_it_is_cut_nothing_is_lost(texts: list[str], cuts: list[int]) -> None:
    whole, items = a_list(texts, metadata={"resourceVersion": "7"})
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(places)]
    assert list(itertools.chain.from_iterable(items_of(pieces))) == items


def test_items_come_before_the_list_has_ended() -> None:
    whole, items = a_list(["a", "b", "c"])
    sent = whole.index(b'"c"')

    def so_far() -> Iterator[bytes]:
        yield whole[:sent]
        raise AssertionError("nobody has to wait for the rest")

    assert next(items_of(so_far())) == items[:2]


def test_a_list_for_people_is_read_too() -> None:
    _, items = a_list(["a", "b"])
    whole = json.dumps({"kind": "List", "items": items, "metadata": {}}, indent=2).encode()
    assert list(itertools.chain.from_iterable(items_of([whole]))) == items


def test_a_list_without_items_is_empty() -> None:
    assert list(items_of([b'{"items":', b'null,"kind":"List"}'])) == [[]]


@pytest.mark.parametrize("text", [b"", b"Unauthorized", b'{"items":[', b'{"items":[{"a":1}', b'{"items":[{"a":1},{"b"'])
def test_what_is_no_list_or_ends_too_soon_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|end"):
        list(items_of([text]))


class _Proxy(BaseHTTPRequestHandler):
    """Answers as often as it is told that it is busy, and then with a list."""

    left = 0

    def do_GET(self) -> None:
        busy = json.dumps({"kind": "Status", "reason": "TooManyRequests", "message": "storage is (re)initializing"})
        status, text = (200, json.dumps({"items": [{"a": 1}]})) if not _Proxy.left else (429, busy)
        _Proxy.left = max(0, _Proxy.left - 1)
        self.send_response(status)
        self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlainClient]:
    class Server(ThreadingMixIn, UnixStreamServer):
        def get_request(self) -> tuple[Any, Any]:
            connection, _ = super().get_request()
            return connection, ("nobody", 0)

    monkeypatch.setattr(time, "sleep", lambda _: None)
    server = Server(str(tmp_path / "proxy"), _Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield PlainClient(str(tmp_path / "proxy"))
    server.shutdown()
    server.server_close()


def test_a_list_is_asked_for_again_when_the_api_server_asks_for_a_moment(client: PlainClient) -> None:
    _Proxy.left = plain_client.TRIES - 1
    assert list(client.items("/apis/x")) == [[{"a": 1}]]


def test_an_api_server_that_stays_busy_is_an_error_in_its_words(client: PlainClient) -> None:
    _Proxy.left = 1_000
    with pytest.raises(ApiError, match="storage is"):
        list(client.items("/apis/x"))
    assert _Proxy.left == 1_000 - plain_client.TRIES
