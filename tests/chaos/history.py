"""Every change of pods, cards, nodes, claims, quotas, workloads and accounts, in the order in which etcd stored them.

Watches of the API server show each kind by itself, and lose events when the server dies. etcd keeps one history of
everything, with one number for each change, and shows it again from any point; so what is seen here is what was
there, complete and in order, whatever happened to the API server. It has to store JSON for that.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

Json = dict[str, Any]

FIRST_KEY, LAST_KEY = "/registry/gpuledger.dev/", "/registry/resourcequotas0"
"""A range of etcd's keys with all of KINDS in it: one watch on it keeps their order."""

KINDS = {
    "/registry/gpuledger.dev/gpuallocations/": "card",
    "/registry/gpuledger.dev/gpuusages/": "usage",
    "/registry/minions/": "node",
    "/registry/pods/": "pod",
    "/registry/kueue.x-k8s.io/workloads/": "workload",
    "/registry/resourceclaims/": "claim",
    "/registry/resourcequotas/": "quota",
}
"""Beginning of a key -> kind of the object. The rest of the key is the name, after the namespace where there is one."""

RECONNECT_PAUSE_S = 0.1
READ_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Change:
    """One object was stored or, if `now` is None, deleted."""

    revision: int
    at_s: float
    """When it was seen here, by `time.monotonic`."""
    kind: str
    key: str
    before: Json | None
    now: Json | None


class History:
    """Follows etcd in a thread of its own, and passes each change to the listeners: `with History(url) as history:`."""

    def __init__(self, etcd_url: str) -> None:
        self.listeners: tuple[Callable[[Change], None], ...] = ()
        """Called in the history's thread, one change after the other."""
        self.failure: BaseException | None = None
        self._address = urlsplit(etcd_url).netloc
        self._revision = 0
        self._objects: dict[tuple[str, str], Json] = {}
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def objects(self, kind: str) -> dict[str, Json]:
        """Return key -> object of what is there now, as far as it was seen."""
        with self._turn:
            return {key: found for (its_kind, key), found in self._objects.items() if its_kind == kind}

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with contextlib.closing(self._connect()) as connection:
                    for answer in self._answers(connection):
                        self._take(answer)
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                self._stopping.wait(RECONNECT_PAUSE_S)
            except BaseException as error:
                self.failure = error
                raise

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address, timeout=READ_TIMEOUT_S)

    def _answers(self, connection: http.client.HTTPConnection) -> Iterator[Json]:
        request = {"key": _encoded(FIRST_KEY), "range_end": _encoded(LAST_KEY), "start_revision": self._revision + 1}
        connection.request("POST", "/v3/watch", json.dumps({"create_request": request}))
        response = connection.getresponse()
        while not self._stopping.is_set() and (line := response.readline()):
            answer = json.loads(line)
            if "result" not in answer:  # it says so when it goes down
                raise ConnectionError(str(answer))
            yield answer["result"]

    def _take(self, answer: Json) -> None:
        if answer.get("canceled"):
            raise RuntimeError(f"etcd has ended the watch for good: {answer}")
        at_s = time.monotonic()
        for event in answer.get("events", ()):
            stored = event["kv"]
            revision, key = int(stored["mod_revision"]), base64.b64decode(stored["key"]).decode()
            for beginning, kind in KINDS.items():
                if key.startswith(beginning):
                    now = None if event.get("type") == "DELETE" else json.loads(base64.b64decode(stored["value"]))
                    self._note(revision, at_s, kind, key.removeprefix(beginning), now)
            self._revision = revision

    def _note(self, revision: int, at_s: float, kind: str, key: str, now: Json | None) -> None:
        with self._turn:
            before = self._objects.pop((kind, key), None)
            if now is not None:
                self._objects[kind, key] = now
        change = Change(revision, at_s, kind, key, before, now)
        for listener in self.listeners:
            listener(change)


def _encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()
