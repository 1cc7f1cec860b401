"""The operator's view server: by its address, or through a `kubectl port-forward` that ends with the command."""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import orjson

from gpuledger.formats.objects.lease import LEASE_NAME, LEASE_NAMESPACE, holder_host
from gpuledger.model.errors import BadInput, NotFound
from gpuledger.plugin.kubectl import Kubectl, ended_by_signals, error_of

Json = dict[str, Any]

VIEW_PORT = 8891
ANSWER_TIMEOUT_S = 30.0
FORWARD_TIMEOUT_S = 20.0
"""How long kubectl may take until it forwards: a slow login is in it."""
END_TIMEOUT_S = 2.0

FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")
BY_HAND = "give its address with --operator-url or GPULEDGER_URL"
VIEW_OFF = f"is the operator's setting view_port {VIEW_PORT}? It is 0 by default, and then nothing listens there"


class View:
    """Questions to the view server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"{url!r} is no address of an operator: it begins with http:// or https://")
        self._url, self._token = url.rstrip("/"), token
        # Not through a proxy of the environment: the operator is on this machine, or where its address says.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, path: str, parameters: dict[str, str]) -> Json:
        """Return an answer. Raises NotFound where nothing is known of what was asked for, BadInput otherwise."""
        request = urllib.request.Request(f"{self._url}{path}?{urlencode(parameters)}")  # noqa: S310 - checked above
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=ANSWER_TIMEOUT_S) as answer:
                found = orjson.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except orjson.JSONDecodeError:
            raise BadInput(f"what answers at {self._url} is not the operator's view server") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise BadInput(f"the operator does not answer at {self._url}: {reason}; {VIEW_OFF}") from None
        if not isinstance(found, dict):
            raise BadInput(f"what answers at {self._url} is not the operator's view server")
        return found


def _refusal(error: urllib.error.HTTPError) -> BadInput | NotFound:
    try:
        text = str(orjson.loads(error.read())["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = ""
    if error.code == 404 and text:
        return NotFound(text, 404)
    if error.code in (401, 403):
        return BadInput(
            f"the operator refuses: {text or error.reason}. Set GPULEDGER_TOKEN to a token of an account that may list "
            "gpuallocations.gpuledger.dev; `kubectl create token` makes one"
        )
    return BadInput(f"the operator answers {error.code}: {text or error.reason}")


@contextlib.contextmanager
def forwarded(kubectl: Kubectl | None) -> Iterator[str]:
    """Yield an address of this machine that leads to the leading operator's view server, until the `with` ends.

    Raises BadInput where that can't be, with what to do; ApiError if the Lease can't be read.
    """
    if kubectl is None:
        raise BadInput(f"kubectl is not on the PATH, and it is the way to the operator; else {BY_HAND}")
    pod = _leader(kubectl)
    arguments = (
        "port-forward",
        "--namespace",
        LEASE_NAMESPACE,
        "--address",
        "127.0.0.1",
        f"pod/{pod}",
        f":{VIEW_PORT}",
    )
    with ended_by_signals(), _running(kubectl.argv(*arguments)) as process:
        yield f"http://127.0.0.1:{_port_of(process, pod)}"


def _leader(kubectl: Kubectl) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{LEASE_NAME}"
    try:
        pod = holder_host(kubectl.read(path))
    except NotFound:
        pod = ""
    if not pod:
        raise BadInput(
            f"no operator leads: Lease {LEASE_NAMESPACE}/{LEASE_NAME} has no holder. "
            f"Look at `kubectl get pods -n {LEASE_NAMESPACE}`; where the operator is no pod, {BY_HAND}"
        )
    return pod


@contextlib.contextmanager
def _running(argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program to the end of the `with`, however that comes."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def _port_of(process: subprocess.Popen[str], pod: str) -> int:
    """Return the port of this machine that kubectl forwards."""
    assert process.stdout  # noqa: S101 - it was asked for
    said: list[str] = []
    too_late = threading.Timer(FORWARD_TIMEOUT_S, process.kill)
    too_late.start()
    try:
        for line in process.stdout:
            if found := FORWARDING.search(line):
                return int(found[1])
            said.append(line)
    finally:
        too_late.cancel()
    complaint = str(error_of("".join(said))) if said else f"it has said nothing for {FORWARD_TIMEOUT_S:g} s"
    hint = ""
    if "portforward" in complaint or "Forbidden" in complaint:
        hint = f"; your account needs `create` on pods/portforward in namespace {LEASE_NAMESPACE}"
    elif "NotFound" in complaint:
        hint = "; it leads no more, and another will take over: try again in a moment"
    raise BadInput(f"kubectl port-forward to pod {LEASE_NAMESPACE}/{pod} failed: {complaint}{hint}. Or {BY_HAND}")
