"""Answers of the operator for commands: by its address, or through a `kubectl port-forward`."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlencode

import orjson

from gpuledger.command_line.cluster_access import ClusterAccess, Helper, cluster_access
from gpuledger.formats.kubernetes.other import LEASE_NAME, LEASE_NAMESPACE, holder_host_name
from gpuledger.model.errors import ApiError, BadInput, Denied, NotFound
from gpuledger.model.json_object import Json

VIEW_PORT = 8891
TOKEN = "GPULEDGER_TOKEN"  # noqa: S105 - the variable's name
ANSWER_TIMEOUT_S = 30.0

PATIENCE_S = 15.0
"""How long a command waits for a replica to become the active one: after a rollout, that takes some seconds."""
PAUSE_S = 0.5

FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")
BY_HAND = "give its address with --operator-url or GPULEDGER_URL"
VIEW_OFF = f"is the operator's setting view_port {VIEW_PORT}, as it is by default? With 0, nothing listens there"


class NoLeader(BadInput):
    """No replica of the operator is the active one, as for some seconds while one takes over from another."""


class View:
    """Questions to the view server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"{url!r} is not an operator's URL, which begins with http:// or https://")
        self._url, self._token = url.rstrip("/"), token
        # Not through a proxy of the environment: the operator is on this machine, or where its address says.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, path: str, parameters: dict[str, str]) -> Json:
        """Return an answer. Raises NotFound for an unknown object, BadInput otherwise."""
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
    kind = NoLeader if error.code == 503 and error.headers.get("Retry-After") else BadInput
    return kind(f"the operator answers {error.code}: {text or error.reason}")


def is_volcano_job(cluster: ClusterAccess, namespace: str, name: str) -> bool:
    """Return whether a Volcano Job has this name, or would have a pod of it; no if the cluster does not say."""
    with contextlib.suppress(ApiError, BadInput):
        jobs = cluster.read(f"/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs")["items"]
        return any(name == job["metadata"]["name"] or name.startswith(f"{job['metadata']['name']}-") for job in jobs)
    return False


def ask(path: str, parameters: dict[str, str], url: str | None, kubeconfig: str | None, context: str | None) -> Json:
    """Return the operator's answer, by its address or, without one, through a port-forward. Raises as `View.ask`.

    Without an address, it waits a while for a replica to be the active one.
    """
    if url:
        return View(url, os.environ.get(TOKEN)).ask(path, parameters)
    with cluster_access(kubeconfig, context) as cluster:
        return answer(cluster, path, parameters, None)


def answer(cluster: ClusterAccess, path: str, parameters: dict[str, str], url: str | None) -> Json:
    """Return the same through a way to the cluster that is open already."""
    return View(url, os.environ.get(TOKEN)).ask(path, parameters) if url else _ask_leader(cluster, path, parameters)


def _ask_leader(cluster: ClusterAccess, path: str, parameters: dict[str, str]) -> Json:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with forwarded(cluster) as address:
                return View(address, os.environ.get(TOKEN)).ask(path, parameters)
        except NoLeader:
            if time.monotonic() > until_s:
                raise
            time.sleep(PAUSE_S)


def explanation_of(cluster: ClusterAccess, kind: str, namespace: str, name: str, url: str | None) -> Json:
    """Return why a pod, a gang or a workload waits, by whichever way the account has to the operator.

    Raises as `View.ask`, and ApiError.
    """
    path, question = "/v1/explain", {kind: f"{namespace}/{name}"}
    try:
        return answer(cluster, path, question, url)
    except Denied:
        from gpuledger.command_line.own_namespace import ask_as_developer

        return ask_as_developer(cluster, kind, namespace, name)


def history_of(cluster: ClusterAccess, question: dict[str, str], url: str | None) -> Json:
    """Return the operator's records, else the Events of a namespace. Raises as `explanation_of`."""
    path = "/v1/history"
    if url:
        return View(url, os.environ.get(TOKEN)).ask(path, question) | {"byEvents": False}
    try:
        return _ask_leader(cluster, path, question) | {"byEvents": False}
    except Denied as error:
        from gpuledger.command_line.own_namespace import events_of

        return events_of(cluster, question, error)


def waiting_pods(cluster: ClusterAccess, namespace: str, url: str | None) -> list[Json]:
    """Return the pods of a namespace, or of all, that wait, with the reasons; raises as `explanation_of`."""
    path, question = "/v1/waiting", {"namespace": namespace} if namespace else {}
    try:
        return list(answer(cluster, path, question, url)["pods"])
    except Denied:
        from gpuledger.command_line.own_namespace import waiting_by_their_status

        return waiting_by_their_status(cluster, namespace)


@contextlib.contextmanager
def forwarded(cluster: ClusterAccess) -> Iterator[str]:
    """Yield an address of this machine that leads to the leading operator's view server, until the `with` ends.

    Raises BadInput where that can't be, with what to do; ApiError if the Lease can't be read.
    """
    if cluster.kubectl is None:
        raise BadInput(f"kubectl is not on the PATH, and the command needs it to reach the operator; or {BY_HAND}")
    pod = _leader(cluster)
    argv = cluster.kubectl.argv(
        "port-forward",
        "--namespace",
        LEASE_NAMESPACE,
        "--address",
        "127.0.0.1",
        f"pod/{pod}",
        f":{VIEW_PORT}",
    )
    forward = cluster.helper(argv, FORWARDING)
    try:
        yield f"http://127.0.0.1:{_port_of(forward, pod)}"
    finally:
        forward.end()


def _leader(cluster: ClusterAccess) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{LEASE_NAME}"
    lease = f"Lease {LEASE_NAMESPACE}/{LEASE_NAME}"
    kind: type[BadInput] = NoLeader
    try:
        pod, problem = holder_host_name(cluster.read(path)), f"{lease} has no holder"
    except NotFound:
        pod, problem, kind = "", f"there is no {lease}", BadInput
    if not pod:
        raise kind(
            f"no operator leads: {problem}. Look at `kubectl get pods -n {LEASE_NAMESPACE}`; where the operator is no "
            f"pod, {BY_HAND}"
        )
    return pod


def _port_of(forward: Helper, pod: str) -> int:
    """Return the port of this machine that kubectl forwards."""
    try:
        return int(forward.wait()[1])
    except (BadInput, ApiError) as error:
        complaint, hint = str(error), ""
    if "portforward" in complaint or "Forbidden" in complaint:
        raise Denied(
            f"kubectl port-forward to pod {LEASE_NAMESPACE}/{pod} failed: {complaint}; "
            f"your account needs `create` on pods/portforward in namespace {LEASE_NAMESPACE}. Or {BY_HAND}"
        )
    if "NotFound" in complaint:
        hint = "; it is no longer the leader, and another replica takes over: retry in a moment"
    raise BadInput(f"kubectl port-forward to pod {LEASE_NAMESPACE}/{pod} failed: {complaint}{hint}. Or {BY_HAND}")
