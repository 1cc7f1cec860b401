"""A stand-in for kubectl: a program that answers from files, and notes what it was asked.

`kubectl proxy` serves, on its socket, what `answers` has for a path without its parameters; what it lacks is not found.
Of these, only a selector of labels counts that is all of `KEY in (ONE,ANOTHER)`.
A watch sends its events and then waits, as a real one. Every call is in `calls`, every request in `requests`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCRIPT = """#!{python} -S
import json, pathlib, sys, time
here = pathlib.Path(__file__).parent

def note(file, what):
    with open(here / file, "a") as notes:
        notes.write(json.dumps(what) + "\\n")

told = json.loads((here / "told.json").read_text())
arguments = sys.argv[1:]
note("calls", arguments)

def selected(answer, query):
    import re, urllib.parse
    selector = dict(urllib.parse.parse_qsl(query)).get("labelSelector", "")
    wanted = re.findall("([^,()]+) in [(]([^)]*)[)]", selector)
    if not wanted:
        return answer
    has = lambda item: all(item["metadata"]["labels"].get(key) in values.split(",") for key, values in wanted)
    return {{**answer, "items": [item for item in answer["items"] if has(item)]}}

def serve(path):
    import http.server, socketserver

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self):
            told.update(json.loads((here / "told.json").read_text()))  # it may have changed meanwhile
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            note("requests", [self.command, self.path, json.loads(body) if body else None])
            path, _, query = self.path.partition("?")
            if "watch=1" in query:
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                for event in told["events"]:
                    self.wfile.write(json.dumps(event).encode() + b"\\n")
                time.sleep(600)
            refusal = told["refusals"].get(self.command) or told["refusals"].get(path)
            if refusal:
                self.answer(*refusal)
            elif self.command == "PATCH":
                self.answer(200, {{}})
            elif path in told["answers"]:
                self.answer(200, selected(told["answers"][path], query))
            else:
                self.answer(404, {{"reason": "NotFound", "message": "there is no " + path}})

        do_GET = do_PATCH = do_POST = do

        def answer(self, status, content):
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def address_string(self):
            return "a socket"

        def log_message(self, *_):
            pass

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with Server(path, Handler) as server:
        print("Starting to serve on", path, flush=True)
        server.serve_forever()

if arguments[0] == "config":
    print(told["namespace"], end="")
if arguments[0] == "proxy":
    if told["complaint"]:
        sys.exit(told["complaint"])
    (here / "proxy.pid").write_text(str(__import__("os").getpid()))
    serve(arguments[1].partition("=")[2])
if arguments[0] == "port-forward":
    (here / "forward.pid").write_text(str(__import__("os").getpid()))
    print(told["forward"], flush=True)
    if not told["forward"].startswith("Forwarding"):
        sys.exit(1)
    time.sleep(600)
"""

Refusal = tuple[int, Any]
"""An HTTP status, and the object or the text that comes with it."""


class FakeKubectl:
    """Writes the program into a directory, which a test puts on the PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "kubectl"
        self.program.write_text(SCRIPT.format(python=sys.executable))
        self.program.chmod(0o755)
        self.tell({})

    def tell(
        self,
        answers: Mapping[str, Any],
        refusals: Mapping[str, Refusal] | None = None,
        forward: str = "",
        namespace: str = "",
        events: Sequence[Any] = (),
        complaint: str = "",
    ) -> None:
        """Set path -> answer, path or method -> refusal, the first words of a port-forward, and events.

        With a complaint, the proxy does not start and says that.
        """
        told = {
            "answers": answers,
            "refusals": refusals or {},
            "forward": forward,
            "namespace": namespace,
            "events": list(events),
            "complaint": complaint,
        }
        (self.directory / "told.json").write_text(json.dumps(told))

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call, oldest first."""
        return self._notes("calls")

    @property
    def requests(self) -> list[tuple[str, str, Any]]:
        """Method, path with parameters, and body of each request, oldest first."""
        return [(method, path, body) for method, path, body in self._notes("requests")]

    def _notes(self, name: str) -> list[Any]:
        file = self.directory / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def forwarder_runs(self) -> bool:
        """Whether the last port-forward still runs."""
        return self._runs("forward.pid")

    @property
    def proxy_runs(self) -> bool:
        """Whether the last proxy still runs."""
        return self._runs("proxy.pid")

    def _runs(self, file: str) -> bool:
        pid = int((self.directory / file).read_text())
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
