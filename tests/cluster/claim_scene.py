"""Agents' slices, policies on claims, and what people try there: on a control plane without the rest of gpuledger."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cluster.cluster import DEADLINE_S, MERGE_PATCH, NODES, Connection, RequestFailed
from cluster.dry_runs import as_user
from control_plane import AuditEvent, ControlPlane
from gpuledger.agent.agent import AgentStore
from gpuledger.agent.node_entry import ResourceSlices
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.card import Amounts, Card
from installation import NAMESPACE

Json = dict[str, Any]

RESOURCES = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCES}/resourceslices"
CLAIMS = f"{RESOURCES}/namespaces/default/resourceclaims"
OURS = "gpu.gpuledger.dev"
AGENT = f"system:serviceaccount:{NAMESPACE}:gpuledger-agent"
NUMBERS = itertools.count(1)


class Publisher:
    """The part of an agent that writes slices, in a thread of its own, with the token of an agent of its node."""

    def __init__(self, plane: ControlPlane, name: str, cards: Sequence[Card]) -> None:
        self._plane, self.name = plane, name
        self._cards = tuple(cards)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self, node: Json) -> None:
        """Begin, for a node as it is stored."""
        self._node = node
        self._config = self._plane.kubeconfig_of_service_account(NAMESPACE, "gpuledger-agent", self.name)
        self._thread.start()
        assert self._started.wait(DEADLINE_S), self._failure

    def show(self, cards: Sequence[Card]) -> None:
        """Have the slices show these cards."""
        self._loop.call_soon_threadsafe(self._slices.want, tuple(cards))

    def end(self) -> None:
        """End it as a killed agent ends."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(DEADLINE_S)

    @property
    def writes(self) -> int:
        """How many it knows of."""
        return self._slices.writes

    async def _run(self) -> None:
        client = await KubeClient.connect(str(self._config), None)
        try:
            self._loop = asyncio.get_running_loop()
            self._slices = ResourceSlices(self.name, AgentStore(client), client)
            self._slices.observe(self._node, False)
            self._slices.want(self._cards)
            self._task = asyncio.create_task(self._slices.run())
            self._started.set()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        finally:
            await client.close()
            await asyncio.sleep(0.1)  # connections close after that


class Scene:
    """A cluster without gpuledger but for its agents' slices, its policies on claims, and its DeviceClass."""

    def __init__(self, plane: ControlPlane, admin: Connection) -> None:
        self.plane, self.admin = plane, admin
        self._nodes: list[str] = []

    def clear(self) -> None:
        """Delete the nodes; their slices go with them."""
        for name in self._nodes:
            with contextlib.suppress(RequestFailed):
                self.admin.request("DELETE", f"{NODES}/{name}")

    def node(self) -> Json:
        """Create a node that takes pods."""
        name = f"slices-{next(NUMBERS)}"
        node = self.admin.request("POST", NODES, {"metadata": {"name": name}})
        self._nodes.append(name)
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "100"}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "no kubelet runs here"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self.admin.request("PATCH", f"{NODES}/{name}/status", {"status": status}, MERGE_PATCH)
        return node

    @contextmanager
    def publishing(self, cards: int = 2, node: Json | None = None) -> Iterator[Publisher]:
        """Have an agent show cards of a node; its slices are there then."""
        node = node or self.node()
        publisher = Publisher(self.plane, node["metadata"]["name"], some_cards(node, cards))
        publisher.start(node)
        try:
            self.wait(lambda: sum(map(len, self.devices(publisher.name))) == cards, "the slices show the cards")
            yield publisher
        finally:
            publisher.end()

    def slices(self, name: str) -> list[Json]:
        """Return the slices of a node."""
        found = self.admin.request("GET", f"{SLICES}?fieldSelector=spec.nodeName={name}")["items"]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def devices(self, name: str) -> list[list[Json]]:
        """Return the devices of each slice of a node."""
        return [each["spec"]["devices"] for each in self.slices(name)]

    def writes(self, name: str, since: int) -> list[AuditEvent]:
        """Return what was written to the slices of a node, by its agent or by others."""
        events = self.plane.api_writes(since)
        return [each for each in events if each.resource == "resourceslices" and each.name.startswith(f"{name}-")]

    def wait(self, done: Any, what: str) -> None:
        """Wait until something is so; fail with a sentence when it never is."""
        begin_s = time.monotonic()
        while not done():
            waited_s = time.monotonic() - begin_s
            assert waited_s < DEADLINE_S, f"after {DEADLINE_S:g} s it is not so that {what}"
            time.sleep(min(max(waited_s / 10, 0.05), 0.5))


def some_cards(node: Json, count: int) -> list[Card]:
    name = node["metadata"]["name"]
    return [
        Card(
            f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{name}')}",
            name,
            index,
            Amounts(40_960, 100, 10),
            model="NVIDIA-A100",
            numa_node=index % 2,
            pcie_root=f"pci0000:{index:02x}",
        )
        for index in range(count)
    ]


def wait_until_in_force(scene: Scene) -> None:
    """Try what each policy refuses, until it does."""
    user, agent = as_user(scene.plane, "user"), as_user(scene.plane, AGENT)
    claim = new_claim(scene, "probe")
    for attempt in (
        lambda: scene.admin.request("PUT", f"{CLAIMS}/{claim}/status?dryRun=All", allocated(scene, claim)),
        lambda: user.request("POST", f"{SLICES}?dryRun=All", a_slice("probe")),
        lambda: agent.request("POST", f"{SLICES}?dryRun=All", a_slice("probe")),
    ):
        scene.wait(lambda attempt=attempt: refusal(attempt) != "", "a policy refuses")
    user.close()
    agent.close()


def refusal(attempt: Any) -> str:
    """Return what a policy says of it, nothing if none refuses it."""
    try:
        attempt()
    except RequestFailed as error:
        return str(error) if "AdmissionPolicy" in str(error) else ""
    return ""


def a_slice(node: str, driver: str = OURS, pool: str = "") -> Json:
    return {
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }


def new_claim(scene: Scene, name: str, tolerations: Sequence[Json] = (), device_class: str = OURS) -> str:
    """Create a claim for one device; return its name."""
    name = f"{name}-{next(NUMBERS)}"
    exactly = {"deviceClassName": device_class, "tolerations": list(tolerations)}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    scene.admin.request("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
    return name


def allocated(scene: Scene, claim: str, *drivers: str, device: str = "gpu-0") -> Json:
    """Return a claim as it would be with a device of each of these drivers, ours if none is named."""
    found = scene.admin.request("GET", f"{CLAIMS}/{claim}")
    results = [{"request": "gpu", "driver": each, "pool": "p", "device": device} for each in drivers or (OURS,)]
    return {**found, "status": {"allocation": {"devices": {"results": results}}}}
