"""The history has every change once and in order, whatever happens to the connection."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chaos.history import Change, History

BREAKS_AFTER = 2
"""Changes that one connection shows before it breaks."""

CHANGES: list[tuple[int, str, object]] = [
    (3, "pods/default/a", {"number": 1}),
    (4, "leases/kube-system/x", {"number": 2}),
    (6, "gpuledger.dev/gpuallocations/gpu-1", {"number": 3}),
    (7, "minions/node-1", {"number": 4}),
    (9, "pods/default/a", {"number": 5}),
    (10, "pods/default/a", None),
]
"""Revision, end of the key, and the object; None where it is deleted."""


class Etcd(BaseHTTPRequestHandler):
    """Shows a few changes from the revision that is asked for on, and hangs up."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        begin = body["create_request"]["start_revision"]
        self.send_response(200)
        self.end_headers()
        for change in [change for change in CHANGES if change[0] >= begin][:BREAKS_AFTER]:
            self.wfile.write(json.dumps({"result": {"events": [event(*change)]}}).encode() + b"\n")
        self.wfile.write(b'{"result": {"eve')

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def event(revision: int, key: str, found: object) -> dict[str, object]:
    stored = {"key": encoded(f"/registry/{key}"), "mod_revision": str(revision)}
    if found is None:
        return {"type": "DELETE", "kv": stored}
    return {"kv": {**stored, "value": encoded(json.dumps(found))}}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def etcd() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Etcd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_broken_connection_loses_and_repeats_nothing(etcd: str) -> None:
    seen: list[Change] = []
    complete = threading.Event()

    def take(change: Change) -> None:
        seen.append(change)
        if change.revision == CHANGES[-1][0]:
            complete.set()

    history = History(etcd)
    history.listeners = (take,)
    with history:
        assert complete.wait(30)
    assert history.failure is None
    assert [(c.revision, c.kind, c.key, c.before, c.now) for c in seen] == [
        (3, "pod", "default/a", None, {"number": 1}),
        (6, "card", "gpu-1", None, {"number": 3}),
        (7, "node", "node-1", None, {"number": 4}),
        (9, "pod", "default/a", {"number": 1}, {"number": 5}),
        (10, "pod", "default/a", {"number": 5}, None),
    ]
    assert history.objects("card") == {"gpu-1": {"number": 3}}
    assert not history.objects("pod")
