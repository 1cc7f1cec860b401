"""What a test does to a cluster, and asks of it: plain requests to the API server, as an administrator."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote, urlsplit

import yaml

from control_plane import AuditEvent, ControlPlane
from gpuledger.agent.simulated import FakeNode, fake_nodes, register_node
from gpuledger.formats.annotations import ENDS_ANNOTATION, ends_annotation
from gpuledger.formats.kubernetes.other import ALLOCATED, condition_of
from gpuledger.kube_api.answers import read_json
from gpuledger.kube_api.client import KubeClient
from installation import USER, Installation

Json = dict[str, Any]

COUNT, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
COUNTS = (COUNT, "volcano.sh/vgpu-number", "volcano.sh/gpu-number", "koordinator.sh/gpu.shared")
"""The names that a node agent serves."""
PERCENT, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
DEVICES = "gpuledger.dev/devices"
ALLOCATIONS = "/apis/gpuledger.dev/v1alpha1/gpuallocations"
NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
MERGE_PATCH, STRATEGIC_PATCH = "application/merge-patch+json", "application/strategic-merge-patch+json"

DEADLINE_S = 60.0
"""How long anything may take on a slow, busy machine. Never how long it should take."""

RESTLESS = ("process_", "gpuledger_event_loop_lag_seconds", "gpuledger_namespace_card_seconds")
"""Metrics that change while nothing happens."""


class RequestFailed(Exception):  # noqa: N818
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass
class Connection:
    """A keep-alive connection to the API server with the administrator's token, unless `identity` says otherwise."""

    plane: ControlPlane
    timeout_s: float = DEADLINE_S
    identity: Mapping[str, str] = field(default_factory=dict)
    """Headers that name somebody else."""
    _http: http.client.HTTPSConnection | None = None
    _headers: dict[str, str] = field(default_factory=dict)

    def open(self) -> http.client.HTTPSConnection:
        """Return a new connection and fill in the headers."""
        config = yaml.safe_load(self.plane.kubeconfig.read_text())
        trust = ssl.create_default_context(cafile=config["clusters"][0]["cluster"]["certificate-authority"])
        self._headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}", **self.identity}
        address = urlsplit(self.plane.server)
        opened = http.client.HTTPSConnection(str(address.hostname), address.port, context=trust, timeout=self.timeout_s)
        # A socket that is left to the garbage collector would fail whatever test runs then.
        weakref.finalize(self, opened.close)
        return opened

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Json:
        """Send a request; the body as kubectl would write it, without blanks, or as it is. Raises RequestFailed."""
        text = body if body is None or isinstance(body, bytes) else json.dumps(body, separators=(",", ":"))
        for attempt in (1, 2):
            self._http = self._http or self.open()
            headers = {**self._headers, "Content-Type": content_type}
            try:
                self._http.request(method, path, text, headers)
                response = self._http.getresponse()
                answer = read_json(response.read() or b"{}")  # of claims, Python's own reader does not read all
            except (http.client.HTTPException, ConnectionError, ssl.SSLEOFError):  # the server ends idle ones
                self.close()
                if attempt == 2:
                    raise
                continue
            if response.status >= 300:
                raise RequestFailed(response.status, answer.get("message", ""))
            return dict(answer)
        raise AssertionError

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._http:
            self._http.close()
            self._http = None

    def watch(self, path: str) -> http.client.HTTPResponse:
        """Start a request whose answer goes on, line by line."""
        self._http = self.open()
        self._http.request("GET", path, headers=self._headers)
        return self._http.getresponse()


class PodWatch:
    """Every event of the pods in the default namespace, from the moment it is made to the end of the `with`."""

    def __init__(self, plane: ControlPlane) -> None:
        self.events: list[Json] = []
        self._plane, self._ended = plane, False

    def __enter__(self) -> Self:
        connection = Connection(self._plane)
        self._version = connection.request("GET", PODS + "?limit=1")["metadata"]["resourceVersion"]
        connection.close()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:  # the server may end a watch at any time; the next one goes on from there
            connection = Connection(self._plane)
            path = f"{PODS}?watch=1&timeoutSeconds=3&resourceVersion={self._version}"
            response = connection.watch(path)
            while line := response.readline():
                self.events.append(json.loads(line))
                self._version = self.events[-1]["object"]["metadata"]["resourceVersion"]
            response.close()
            connection.close()

    def objects_of(self, uids: set[str]) -> list[Json]:
        """Return every state in which the pods were shown."""
        return [event["object"] for event in list(self.events) if event["object"]["metadata"]["uid"] in uids]


def container(limits: Mapping[str, object], name: str = "main", **extra: object) -> Json:
    """Return a container with these limits."""
    return {"name": name, "image": "none", "resources": {"limits": {k: str(v) for k, v in limits.items()}}, **extra}


def pod(
    name: str, *containers: Mapping[str, Any], annotations: Mapping[str, str] | None = None, **spec: object
) -> Json:
    """Return a pod of our scheduler profile; a mapping of limits stands for a single container.

    It may take a second to end: what is deleted by force keeps its share for that time and `release_delay_s`.
    """
    listed = [c if "image" in c else container(c) for c in containers]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {"schedulerName": "gpuledger", "containers": listed, "terminationGracePeriodSeconds": 1, **spec},
    }


def devices(found: Json) -> dict[str, list[Json]]:
    """Return a pod's device annotation."""
    return dict(json.loads(found["metadata"]["annotations"][DEVICES]))


def uuids(found: Json) -> list[str]:
    """Return the UUIDs of a pod's cards, over all containers."""
    return [card["uuid"] for cards in devices(found).values() for card in cards]


class Cluster:
    """A control plane with gpuledger on it."""

    def __init__(self, plane: ControlPlane, installation: Installation) -> None:
        self.plane, self.installation = plane, installation
        self._connection = Connection(plane)
        self._numbers = itertools.count(1)
        self.request = self._connection.request
        self.close = self._connection.close

    def patch(self, path: str, change: object) -> Json:
        """Send a merge patch."""
        return self.request("PATCH", path, change, MERGE_PATCH)

    # Nodes and cards.

    def add_nodes(self, count: int, gpus: int = 8, slots: int = 10, model: str = "A100-40GB") -> list[FakeNode]:
        """Register simulated nodes and wait until their cards can be used, and nothing more is written of them."""
        nodes = fake_nodes(f"node-{next(self._numbers)}", count, gpus, model, slots)
        self.register(*nodes)
        wanted = {card.uuid for node in nodes for card in node.cards}

        def are_ready() -> bool:
            ready = (u for u, a in self.cards().items() if phase(a) == "Ready" and "managedFields" not in a["metadata"])
            return wanted <= set(ready)

        self.wait(are_ready, "the cards are ready")
        return nodes

    def register(self, *nodes: FakeNode) -> None:
        """Create nodes, or report their cards anew, as their agents and kubelets would."""

        async def register() -> None:
            client = await KubeClient.connect(self.plane.kubeconfig)
            try:
                for node in nodes:
                    await register_node(client, node, COUNTS)
            finally:
                await client.close()

        asyncio.run(register())

    def create_node(self, name: str, amounts: Mapping[str, object], **metadata: object) -> None:
        """Create a node as its kubelet does, with its amounts at once.

        kube-scheduler may ask for a pod in between, and not again when they come (docs/limits.md).
        """
        listed = {resource: str(amount) for resource, amount in amounts.items()}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        status = {"capacity": listed, "allocatable": listed, "conditions": [ready]}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}, "status": status}
        self.request("POST", NODES, body)

    def cards(self) -> dict[str, Json]:
        """Return card UUID -> GPUAllocation."""
        return {item["spec"]["uuid"]: item for item in self.request("GET", ALLOCATIONS)["items"]}

    def holders(self) -> dict[str, list[Json]]:
        """Return card UUID -> its holders."""
        return {uuid: (card.get("status") or {}).get("holders", []) for uuid, card in self.cards().items()}

    def set_slots(self, node_name: str, slots: int | None, resource: str = COUNT) -> None:
        """Set what the kubelet says of the device plugin's slots."""
        amount = None if slots is None else str(slots)
        change = {"status": {"allocatable": {resource: amount}, "capacity": {resource: amount}}}
        self.patch(f"/api/v1/nodes/{node_name}/status", change)

    # The operator.

    def restart_operator(self) -> None:
        """Kill the operator if it still runs, and start it."""
        self.installation.restart_operator()

    @contextmanager
    def other_settings(self, **changes: object) -> Iterator[None]:
        """Run the operator with other settings for a while."""
        file = self.installation.settings_file
        before = file.read_text()
        file.write_text(yaml.safe_dump({**yaml.safe_load(before), **changes}))
        try:
            self.restart_operator()
            yield
        finally:
            file.write_text(before)
            self.restart_operator()

    # Pods.

    def create(self, *pods: Json) -> None:
        """Create pods, one after the other, as fast as it goes."""
        for body in pods:
            self.request("POST", PODS, body)

    def pods(self) -> dict[str, Json]:
        """Return pod name -> pod, in the default namespace."""
        return {item["metadata"]["name"]: item for item in self.request("GET", PODS)["items"]}

    def pod(self, name: str) -> Json:
        """Return a pod."""
        return self.request("GET", f"{PODS}/{name}")

    def delete(self, *names: str) -> None:
        """Delete pods at once, as if they had never started."""
        for name in names:
            self.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def finish(self, name: str) -> None:
        """Let a pod end well."""
        self.patch(f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}})

    def wait_bound(self, *names: str, timeout_s: float = DEADLINE_S) -> list[Json]:
        """Wait until the pods have a node; return them in this order."""
        found: dict[str, Json] = {}

        def all_bound() -> bool:
            found.clear()
            found.update(self.pods())
            return all(found[name]["spec"].get("nodeName") for name in names)

        try:
            self.wait(all_bound, f"{names} are bound", timeout_s)
        except AssertionError as error:
            late = {name: self.messages(name) for name in names if not self.pod(name)["spec"].get("nodeName")}
            raise AssertionError(f"{error}\nthose that are not: {late}") from None
        return [found[name] for name in names]

    def wait_refused(self, name: str, text: str) -> str:
        """Wait until the pod's FailedScheduling event has a text in it; return the message."""
        found: list[str] = []

        def refused() -> bool:
            found[:] = [message for message in self.messages(name) if text in message]
            return bool(found)

        self.wait(refused, f"pod {name} waits because of {text!r}; its messages are {self.messages(name)}")
        assert not self.pod(name)["spec"].get("nodeName")
        return found[0]

    def condition(self, name: str) -> tuple[str, str, str] | None:
        """Return status, reason and message of a pod's condition GPUAllocated, if it has it."""
        condition = condition_of(self.pod(name), ALLOCATED)
        return (condition["status"], condition["reason"], condition["message"]) if condition else None

    def messages(self, name: str, kind: str = "Pod") -> list[str]:
        """Return the texts of the events about an object."""
        selector = quote(f"involvedObject.name={name},involvedObject.kind={kind}")
        events = self.request("GET", f"/api/v1/namespaces/default/events?fieldSelector={selector}")["items"]
        return [event["message"] for event in events]

    # Asking.

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
        """Wait until a condition holds; fail with a sentence when it never does."""
        begin_s = time.monotonic()
        while not condition():
            waited_s = time.monotonic() - begin_s
            assert waited_s < timeout_s, f"after {timeout_s:g} s it is not so that {what}\n{self._logs()}"
            # Asking costs the API server as much as working does. Who has waited long can ask less often.
            time.sleep(min(max(waited_s / 5, 0.05), 0.5))

    def _logs(self) -> str:
        programs = (self.installation.operator, self.installation.scheduler)
        return "\n".join(
            f"--- {program.name}, alive: {program.alive}\n" + "\n".join(program.log_text().splitlines()[-12:])
            for program in programs
            if program
        )

    def metric(self, name: str) -> float:
        """Return one of the operator's metrics, 0 if it has not counted yet."""
        return self.installation.metrics().get(name, 0.0)

    def our_writes(self, since_offset: int, resources: Sequence[str]) -> list[AuditEvent]:
        """Return what our account has written to these resources, from the audit log."""
        events = self.plane.api_writes(since_offset)
        return [event for event in events if event.user == USER and event.resource in resources]

    def our_requests(self, since_offset: int) -> list[AuditEvent]:
        """Return what the operator has asked of the API server, from the audit log; its watches and Lease left out."""
        events = [e for e in self.plane.audit_events(since_offset) if e.user == USER and e.verb != "watch"]
        # kube-scheduler has the same account. All it writes is one Event for each pod, as it does for all pods.
        ours = [e for e in events if not e.agent.startswith("kube-scheduler") and e.resource != "leases"]
        assert len(ours) < len(events), "the two programs can be told apart"
        return ours

    def settle(self, pause_s: float = 0.5) -> None:
        """Wait until the operator counts nothing for a while: it has taken in what happened before."""
        before: dict[str, float] = {}

        def quiet() -> bool:
            nonlocal before
            time.sleep(pause_s)
            after = {name: each for name, each in self.installation.metrics().items() if not name.startswith(RESTLESS)}
            same, before = bool(after) and after == before, after
            return same

        self.wait(quiet, "the operator comes to rest")

    def check_consistent(self, namespace: str = "default") -> None:
        """Compare every pod's annotation with the ledger, and the ledger with the cards' capacity.

        No pod of another namespace may hold any.
        """
        pods = self.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        bound = {p["metadata"]["uid"]: p for p in pods if p["spec"].get("nodeName")}
        entered: dict[str, set[str]] = {}
        for uuid, card in self.cards().items():
            held = card["status"]["holders"]
            for amount, capacity in card["spec"]["capacity"].items():
                used = card["status"]["used"][amount]
                assert used == sum(holder[amount] for holder in held), (uuid, amount)
                assert used <= capacity, (uuid, amount)
            assert len(held) == 1 or not any(holder["exclusive"] for holder in held), uuid
            for holder in held:
                entered.setdefault(holder["podUID"], set()).add(uuid)
                _check_holder(uuid, card, holder, bound[holder["podUID"]])
        for uid, found in bound.items():
            assert entered.get(uid, set()) == set(uuids(found)), found["metadata"]["name"]

    def objects(self, kind: str) -> list[Json]:
        """Return all pods, nodes or gpuallocations of the cluster."""
        path = ALLOCATIONS if kind == "gpuallocations" else f"/api/v1/{kind}"
        return list(self.request("GET", path)["items"])

    def clear(self) -> None:
        """Remove all pods and nodes, and what pods can claim. The operator then removes the cards."""
        self._tell_ends()
        self.request("DELETE", PODS, {"gracePeriodSeconds": 0})
        for kind in ("resourceclaims", "resourceclaimtemplates"):
            self.request("DELETE", f"/apis/resource.k8s.io/v1/namespaces/default/{kind}")
        self.request("DELETE", "/api/v1/namespaces/default/events")
        try:
            self.wait(lambda: not self._tell_ends(), "no shares are left")
        finally:
            self.request("DELETE", NODES)
        self.wait(lambda: not self.pods() and not self.cards(), "no pods and no cards are left")

    def _tell_ends(self) -> bool:
        """Say of all pods with shares that nothing of them runs, as agents do; return whether there are any."""
        ended: dict[str, dict[str, bool]] = {}  # node name -> UID of a pod -> whether anything of it runs
        for card in self.cards().values():
            for holder in (card.get("status") or {}).get("holders", []):
                ended.setdefault(card["spec"]["nodeName"], {})[holder["podUID"]] = False
        for name, runs in ended.items():
            with suppress(RequestFailed):  # it may have been deleted
                self.patch(f"{NODES}/{name}", {"metadata": {"annotations": {ENDS_ANNOTATION: ends_annotation(runs)}}})
        return bool(ended)


def _check_holder(uuid: str, card: Json, holder: Json, found: Json) -> None:
    assert found["spec"]["nodeName"] == card["spec"]["nodeName"]
    told = {name: entry for name, entries in devices(found).items() for entry in entries if entry["uuid"] == uuid}
    written = {entry["name"]: entry for entry in holder["containers"]}
    for amount in ("memoryMiB", "cores"):
        assert {n: e[amount] for n, e in told.items()} == {n: e[amount] for n, e in written.items()}
        if not found["spec"].get("initContainers"):
            assert holder[amount] == sum(entry[amount] for entry in told.values())
    assert holder["number"] <= len(told)


def phase(card: Json) -> str:
    """Return a card's phase, an empty string before its first status."""
    return str((card.get("status") or {}).get("phase", ""))
