"""kubectl as the way to the cluster: it understands whatever credentials the user's kubeconfig names, and it is quick.

A client in Python takes half a second to import; kubectl has answered in a tenth of that, while Python still reads the
modules that show the answer.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from tempfile import TemporaryFile
from types import FrameType
from typing import Any
from urllib.parse import urlencode

import orjson

from gpuledger.formats.custom_resource.resource import GROUP, PLURAL
from gpuledger.model.errors import ApiError, BadInput, Conflict, Denied, Invalid, NotFound, Unreachable

Json = dict[str, Any]

REFUSED = re.compile(r"Error from server \((\w+)\)")
"""How kubectl begins when the API server said no: with the reason of its Status."""

KINDS: dict[str, tuple[type[ApiError], int]] = {
    "NotFound": (NotFound, 404),
    "Forbidden": (Denied, 403),
    "Unauthorized": (Denied, 401),
    "Conflict": (Conflict, 409),
    "Expired": (Conflict, 410),
    "Gone": (Conflict, 410),
    "Invalid": (Invalid, 422),
    "BadRequest": (ApiError, 400),
}
"""Reason of a Status -> the error that it becomes here, and the HTTP status."""


PIECE_BYTES = 1024 * 1024


class Pending:
    """A kubectl that runs while others go on. Its output is read all the time, so that it never waits for us."""

    def __init__(self, argv: list[str]) -> None:
        self._complaint = TemporaryFile()  # noqa: SIM115 - closed when the output has ended
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._complaint,
            bufsize=0,
            pipesize=PIECE_BYTES,
        )
        self._read_already: SimpleQueue[bytes] = SimpleQueue()  # an empty piece is the end
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout  # noqa: S101 - it was asked for
        with self._process.stdout as output:
            while piece := output.read(PIECE_BYTES):
                self._read_already.put(piece)
        self._read_already.put(b"")

    def pieces(self) -> Iterator[bytes]:
        """Yield the output as it comes. Raises BadInput or a subclass of ApiError at its end, in kubectl's words."""
        while piece := self._read_already.get():
            yield piece
        with self._complaint as complaint:
            if self._process.wait():
                complaint.seek(0)
                raise error_of(complaint.read().decode(errors="replace"))

    def result(self) -> bytes:
        """Wait for the end; return the output. Raises as `pieces`."""
        return b"".join(self.pieces())


class Kubectl:
    """The user's kubectl, with the kubeconfig and the context that the user has named."""

    def __init__(self, program: str, kubeconfig: str | None = None, context: str | None = None) -> None:
        self._program = program
        self._flags = [
            *(["--kubeconfig", kubeconfig] if kubeconfig else []),
            *(["--context", context] if context else []),
        ]

    def argv(self, *arguments: str) -> list[str]:
        """Return the command line for these arguments."""
        return [self._program, *arguments, *self._flags]

    def begin(self, path: str, parameters: Json | None = None) -> Pending:
        """Start to read what is at a path of the API."""
        return Pending(self.argv("get", "--raw", with_query(path, parameters)))

    def read(self, path: str, parameters: Json | None = None) -> Json:
        """Return the object at a path of the API. Raises as `Pending.result`."""
        found: Json = orjson.loads(self.begin(path, parameters).result())
        return found

    def patch_card(self, name: str, change: Json) -> Json:
        """Merge a change into a GPUAllocation and return it. Raises as `Pending.result`."""
        body = orjson.dumps(change).decode()
        argv = self.argv("patch", f"{PLURAL}.{GROUP}", name, "--type=merge", "--patch", body, "--output=json")
        found: Json = orjson.loads(Pending(argv).result())
        return found

    def namespace(self) -> str:
        """Return the namespace of the context."""
        argv = self.argv("config", "view", "--minify", "--output=jsonpath={..namespace}")
        try:
            return Pending(argv).result().decode().strip() or "default"
        except BadInput:  # no kubeconfig: in a pod, or what follows will say so
            return "default"


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this program as Ctrl-C does, so that what it has started ends, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def find_kubectl(kubeconfig: str | None, context: str | None) -> Kubectl | None:
    """Return the kubectl on the path, None if there is none."""
    program = shutil.which("kubectl")
    return Kubectl(program, kubeconfig, context) if program else None


def with_query(path: str, parameters: Json | None) -> str:
    """Return a path with its parameters."""
    return f"{path}?{urlencode(parameters)}" if parameters else path


def error_of(complaint: str) -> BadInput | ApiError:
    """Return what kubectl complained of as the error that it is, in its own words."""
    text = " ".join(complaint.split()).removeprefix("error: ") or "kubectl failed and did not say why"
    refused = REFUSED.search(text)
    if refused:
        kind, status = KINDS.get(refused[1], (Unreachable, 500))
        return kind(text, status)
    if "onnect" in text or "timeout" in text or "no such host" in text:  # "The connection ...", "Unable to connect ..."
        return Unreachable(f"{text} Is the right cluster named? --kubeconfig, --context")
    return BadInput(text)
