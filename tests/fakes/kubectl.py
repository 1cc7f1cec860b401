"""A stand-in for kubectl: a program that answers from files, and notes what it was asked to write.

`kubectl get --raw PATH` prints what `answers` has for the path, without its parameters; without an answer it fails as
kubectl does. A watch prints its events and then waits, as the real one. Every call is in `calls`.
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
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
told = json.loads((here / "told.json").read_text())
arguments = sys.argv[1:]
if arguments[0] == "get":
    path, _, query = arguments[2].partition("?")
    if "watch=1" in query:
        for event in told["events"]:
            print(json.dumps(event), flush=True)
        time.sleep(600)
    if path in told["answers"]:
        print(json.dumps(told["answers"][path]))
        sys.exit(0)
    sys.stderr.write(told["refusals"].get(path, "Error from server (NotFound): there is no " + path) + "\\n")
    sys.exit(1)
if arguments[0] == "config":
    print(told["namespace"], end="")
if arguments[0] == "patch":
    if told["refusals"].get("patch"):
        sys.stderr.write(told["refusals"]["patch"] + "\\n")
        sys.exit(1)
    print("{{}}")
if arguments[0] == "proxy":
    (here / "proxy.pid").write_text(str(__import__("os").getpid()))
    print("Starting to serve on nothing", flush=True)
    time.sleep(600)
if arguments[0] == "port-forward":
    (here / "forward.pid").write_text(str(__import__("os").getpid()))
    print(told["forward"], flush=True)
    if not told["forward"].startswith("Forwarding"):
        sys.exit(1)
    time.sleep(600)
"""


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
        refusals: Mapping[str, str] | None = None,
        forward: str = "",
        namespace: str = "",
        events: Sequence[Any] = (),
    ) -> None:
        """Set path -> answer, path -> what it complains of, the first words of a port-forward, and events."""
        told = {
            "answers": answers,
            "refusals": refusals or {},
            "forward": forward,
            "namespace": namespace,
            "events": list(events),
        }
        (self.directory / "told.json").write_text(json.dumps(told))

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call, oldest first."""
        file = self.directory / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def forwarder_runs(self) -> bool:
        """Whether the last port-forward still runs."""
        return self._runs("forward.pid")

    @property
    def proxy_runs(self) -> bool:
        """Whether the last proxy still runs. It serves nothing."""
        return self._runs("proxy.pid")

    def _runs(self, file: str) -> bool:
        pid = int((self.directory / file).read_text())
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
