"""ResourceSlices on a real API server: what is in them, what they cost, and that no other scheduler has our cards."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.cluster import DEADLINE_S, MERGE_PATCH, NODES, PODS, Connection, RequestFailed
from cluster.dry_runs import as_user
from cluster.kubernetes import MINOR
from control_plane import AuditEvent, ControlPlane
from gpuledger.agent.resource_slices import ResourceSlices
from gpuledger.agent.startup import AgentStore
from gpuledger.formats.resource_claims.slices import NodeOwner, slices_of
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.amounts import Amounts
from gpuledger.model.card import Card
from installation import MANIFESTS, NAMESPACE

Json = dict[str, Any]

RESOURCES = "/apis/resource.k8s.io/v1"
SLICES, CLASSES = f"{RESOURCES}/resourceslices", f"{RESOURCES}/deviceclasses"
CLAIMS = f"{RESOURCES}/namespaces/default/resourceclaims"
OURS = "gpu.gpuledger.dev"
AGENT = f"system:serviceaccount:{NAMESPACE}:gpuledger-agent"
POLICIES = ("gpuledger-claims", "gpuledger-slices")
NUMBERS = itertools.count(1)

KEEPS_ALL = tuple(map(int, MINOR.split("."))) >= (1, 36)
"""Whether the API server keeps taints and policies of amounts: before 1.36 these are off, and left out."""

keeps_all = pytest.mark.skipif(not KEEPS_ALL, reason=f"Kubernetes {MINOR} leaves out device taints")


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

    def node(self) -> Json:
        """Create a node that takes pods."""
        name = f"slices-{next(NUMBERS)}"
        node = self.admin.request("POST", NODES, {"metadata": {"name": name}})
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


@pytest.fixture(scope="module")
def scene(ledger: ControlPlane) -> Iterator[Scene]:
    """Yield the scene, once the policies are in force; take them away in the end."""
    admin = Connection(ledger)
    for file in ("namespace.yaml", "agent/service_account.yaml", "agent/rbac.yaml", "agent/policy.yaml"):
        ledger.kubectl("apply", "-f", str(MANIFESTS / file))
    ledger.kubectl("apply", "-f", str(MANIFESTS / "service_account.yaml"))
    ledger.kubectl("apply", "-f", str(MANIFESTS / "rbac.yaml"))
    ledger.kubectl("apply", "-k", str(MANIFESTS / "claims"))
    policies = ledger.directory / "claim-policies.yaml"
    every = yaml.safe_load_all((MANIFESTS / "admission" / "validating.yaml").read_text())
    policies.write_text(yaml.safe_dump_all([each for each in every if each["metadata"]["name"] in POLICIES]))
    ledger.kubectl("apply", "-f", str(policies))
    found = Scene(ledger, admin)
    wait_until_in_force(found)
    yield found
    ledger.kubectl("delete", "-f", str(policies), "-f", str(MANIFESTS / "agent" / "policy.yaml"))
    admin.close()


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


# What is in them, and what they cost.


def test_a_node_shows_its_cards_as_the_api_server_stores_them(scene: Scene) -> None:
    node = scene.node()
    name, uid = node["metadata"]["name"], node["metadata"]["uid"]
    with scene.publishing(2, node):
        (stored,) = scene.slices(name)
        (wanted,) = slices_of(NodeOwner(name, uid), some_cards(node, 2), 1).values()
        assert stored["metadata"]["ownerReferences"] == wanted["metadata"]["ownerReferences"]
        if not KEEPS_ALL:
            for device in wanted["spec"]["devices"]:
                for field in ("taints", "allowMultipleAllocations"):
                    device.pop(field)
                for amount in device["capacity"].values():
                    amount.pop("requestPolicy")
        for device in stored["spec"]["devices"]:
            for taint in device.get("taints", ()):
                assert taint.pop("timeAdded")  # is the API server's
        assert stored["spec"] == wanted["spec"]


def test_slices_are_written_when_something_differs_and_at_no_other_time(scene: Scene) -> None:
    node = scene.node()
    name, cards = node["metadata"]["name"], some_cards(node, 2)
    since = scene.plane.audit_offset()
    with scene.publishing(2, node) as publisher:
        publisher.show([replace(cards[0], links={cards[1].uuid: 100}), cards[1]])  # no part of a slice
        publisher.show([replace(cards[0], healthy=False, fault="Xid 79"), cards[1]])
        scene.wait(lambda: pool(scene, name)["generation"] == 2, "a change is shown")
        publisher.show([replace(cards[0], healthy=False, fault="Xid 48"), cards[1]])
        scene.admin.request("DELETE", f"{SLICES}?fieldSelector=spec.nodeName={name},spec.driver={OURS}")
        scene.wait(lambda: len(scene.slices(name)) == 1, "what a kubelet deletes is shown again")
        scene.wait(lambda: publisher.writes == 3, "its answer is read")
    second = Publisher(scene.plane, name, [replace(cards[0], healthy=False), cards[1]])
    second.start(node)
    if KEEPS_ALL:  # else it can't tell that what is stored is what was sent, and writes that
        second.show([replace(cards[0], healthy=False), replace(cards[1], index=7)])
    scene.wait(lambda: second.writes == 1, "the next agent writes what differs")
    second.end()
    by_agent = [each.verb for each in scene.writes(name, since) if each.user == AGENT]
    assert by_agent == ["create", "update", "create", "update"]


def pool(scene: Scene, name: str) -> Json:
    (found,) = scene.slices(name)
    return dict(found["spec"]["pool"])


def test_a_node_with_many_cards_has_several_slices_of_one_pool(scene: Scene) -> None:
    node = scene.node()
    with scene.publishing(70, node) as publisher:
        assert [len(each) for each in scene.devices(publisher.name)] == [64, 6]
        publisher.show(some_cards(node, 64))
        scene.wait(lambda: [len(each) for each in scene.devices(publisher.name)] == [64], "one slice is enough")
        assert pool(scene, publisher.name) == {"name": publisher.name, "generation": 2, "resourceSliceCount": 1}


def test_the_slices_of_a_node_that_is_gone_are_deleted(scene: Scene) -> None:
    with scene.publishing() as publisher:
        name = publisher.name
    scene.admin.request("DELETE", f"{NODES}/{name}")
    scene.wait(lambda: scene.slices(name) == [], "the garbage collector deletes them")


# Other schedulers.


@pytest.fixture(scope="module")
def stock(scene: Scene) -> Iterator[Scene]:
    """Yield the scene with a scheduler as any cluster has it."""
    scheduler = scene.plane.start_default_scheduler()
    yield scene
    scheduler.terminate()


EVERYTHING = [{"operator": "Exists"}]


@contextmanager
def pod_with_claim(scene: Scene, node: str, tolerations: Sequence[Json] = ()) -> Iterator[tuple[str, str]]:
    """Have a pod of the default scheduler that asks for a card of a node; yield its path and its claim's."""
    claim = new_claim(scene, "stock", tolerations)
    body = {
        "metadata": {"name": claim},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }
    label = {"metadata": {"labels": {"kubernetes.io/hostname": node}}}
    scene.admin.request("PATCH", f"{NODES}/{node}", label, MERGE_PATCH)
    scene.admin.request("POST", PODS, body)
    try:
        yield f"{PODS}/{claim}", f"{CLAIMS}/{claim}"
    finally:
        scene.admin.request("DELETE", f"{PODS}/{claim}", {"gracePeriodSeconds": 0})


def why_pending(scene: Scene, path: str) -> str:
    """Return what the scheduler says of a pod."""
    conditions = scene.admin.request("GET", path)["status"].get("conditions") or ()
    return " ".join(str(each.get("message")) for each in conditions if each["type"] == "PodScheduled")


@keeps_all
def test_a_stock_scheduler_leaves_our_cards_alone(stock: Scene) -> None:
    with stock.publishing() as publisher, pod_with_claim(stock, publisher.name) as (pod, claim):
        stock.wait(lambda: "cannot allocate all claims" in why_pending(stock, pod), "the scheduler finds no device")
        assert "allocation" not in stock.admin.request("GET", claim).get("status", {})


def test_a_stock_scheduler_that_tolerates_everything_can_not_give_one_to_a_claim(stock: Scene) -> None:
    with stock.publishing() as publisher:
        since = stock.plane.audit_offset()
        with pod_with_claim(stock, publisher.name, EVERYTHING if KEEPS_ALL else ()) as (pod, claim):
            stock.wait(lambda: "gpuledger-claims" in why_pending(stock, pod), "the policy refuses the allocation")
            assert "allocation" not in stock.admin.request("GET", claim).get("status", {})
            assert "nodeName" not in stock.admin.request("GET", pod)["spec"]
        tried = [each for each in stock.plane.api_writes(since) if each.subresource == "status"]
        assert {each.code for each in tried if each.resource == "resourceclaims"} == {403}


# Who may write what.


@pytest.fixture
def operator(scene: Scene) -> Iterator[Connection]:
    """Yield a connection with the operator's own token, and no more rights than it has."""
    config = scene.plane.kubeconfig_of_service_account(NAMESPACE, "gpuledger")
    opened = Connection(scene.plane, identity={"Authorization": f"Bearer {token_of(config)}"})
    yield opened
    opened.close()


def token_of(kubeconfig: Path) -> str:
    return str(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])


def test_only_the_operator_gives_cards_of_ours_to_a_claim(scene: Scene, operator: Connection) -> None:
    claim = new_claim(scene, "ours")
    path, ours = f"{CLAIMS}/{claim}/status", allocated(scene, claim)
    said = refusal(lambda: scene.admin.request("PUT", path, ours))
    assert f"only gpuledger gives out devices of {OURS}" in said
    assert refusal(lambda: scene.admin.request("PUT", path, allocated(scene, claim, "other.example.com", OURS)))
    stored = operator.request("PATCH", path, {"status": ours["status"]}, MERGE_PATCH)
    assert stored["status"]["allocation"]["devices"]["results"][0]["driver"] == OURS
    # Others write the rest of the status, and end the allocation: the claims' controller does, and drivers.
    who: Json = {"resource": "pods", "name": "some", "uid": "0"}
    scene.admin.request("PATCH", path, {"status": {"reservedFor": [who]}}, MERGE_PATCH)
    scene.admin.request("PATCH", path, {"status": {"reservedFor": None, "allocation": None}}, MERGE_PATCH)
    assert "allocation" not in scene.admin.request("GET", f"{CLAIMS}/{claim}").get("status", {})


def test_claims_of_other_drivers_are_nobodys_business(scene: Scene) -> None:
    claim = new_claim(scene, "others")
    stored = scene.admin.request("PUT", f"{CLAIMS}/{claim}/status", allocated(scene, claim, "other.example.com"))
    assert stored["status"]["allocation"]["devices"]["results"][0]["driver"] == "other.example.com"


def test_only_agents_list_our_cards_and_everybody_those_of_other_drivers(scene: Scene) -> None:
    said = refusal(lambda: scene.admin.request("POST", SLICES, a_slice("any")))
    assert f"only gpuledger's node agents write ResourceSlices of the driver {OURS}" in said
    scene.admin.request("POST", f"{SLICES}?dryRun=All", a_slice("any", "other.example.com"))
    with scene.publishing() as publisher:
        path = f"{SLICES}/{publisher.name}-{OURS}"
        assert refusal(lambda: scene.admin.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (a_slice("own"), ""),
        (a_slice("own", "other.example.com"), f"a node agent writes ResourceSlices of the driver {OURS} only"),
        (a_slice("other"), "its token is for node own, not for other"),
        (a_slice("own", pool="other"), "its token is for node own"),
        (
            {**a_slice("own"), "spec": {**a_slice("own")["spec"], "nodeName": None, "allNodes": True}},
            "not for all nodes",
        ),
    ],
    ids=["its own", "another driver", "another node", "another pool", "no node"],
)
def test_an_agent_lists_the_cards_of_its_own_node(scene: Scene, body: Mapping[str, Any], said: str) -> None:
    with agent_of(scene, "own") as agent:
        found = refusal(lambda: agent.request("POST", f"{SLICES}?dryRun=All", body))
        assert said in found
        assert bool(said) == bool(found)


def test_an_agent_deletes_no_slices_of_other_nodes_and_one_without_a_node_writes_none(scene: Scene) -> None:
    with scene.publishing() as publisher, agent_of(scene, "own") as agent:
        path = f"{SLICES}/{publisher.name}-{OURS}"
        assert f"not for {publisher.name}" in refusal(lambda: agent.request("DELETE", path))
    with agent_of(scene, "") as nowhere:
        body = a_slice("own")
        assert "its token is for no node" in refusal(lambda: nowhere.request("POST", f"{SLICES}?dryRun=All", body))


@contextmanager
def agent_of(scene: Scene, node: str) -> Iterator[Connection]:
    """Yield a connection of the agents' account, with more rights than it has: only the policies limit it."""
    extra = {"authentication.kubernetes.io%2Fnode-name": node} if node else {}
    opened = as_user(scene.plane, AGENT, **extra)
    yield opened
    opened.close()
