"""Pods that find no cards get nodes from Karpenter, with its own program: as many as they need, and no more."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.claims import CLAIMS, OUR_CLASS, claim, claiming, request
from cluster.cluster import COUNT, MEMORY, NODES, pod
from cluster.gangs import gang, names
from cluster.karpenter_scene import GPUS, MODEL, KarpenterScene, beside_karpenter
from effort import RUN_SEED
from fakes.objects import a_node_object
from gpuledger.agent.simulated import fake_node
from gpuledger.formats.annotations import STAND_IN_LABEL
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from installation import NAMESPACE
from karpenter import POOL, POOL_LABEL, POOLS, TYPES, instance_type, node_pool

Json = dict[str, Any]

pytestmark = pytest.mark.timeout(900)

TEMPLATE = {
    "name": "eight-cards",
    "labels": {POOL_LABEL: POOL},
    "cards": GPUS,
    "model": MODEL,
    "memory_mib": 40_960,
    "cpu": 128,
    "memory": "1Ti",
}
SETTINGS = {"growth": "stand-ins", "growth_delay_s": 1.0, "node_templates": [TEMPLATE]}
NAMESPACES = "/api/v1/namespaces"
STOCK, STOCK_PODS = "stock", "/api/v1/namespaces/stock/pods"
WHOLE_DEVICES = instance_type(STOCK, 30.0, {"cpu": "128", "memory": "1Ti", "pods": "250", COUNT: str(GPUS)})
"""Without gpuledger, a pod has a device or none."""
COMES_S = 120.0
UNCONSOLIDATABLE = "Unconsolidatable"


@pytest.fixture(scope="module")
def scene() -> Iterator[KarpenterScene]:
    """Yield a cluster without nodes, of whose pods Karpenter sees stand-ins alone."""
    with beside_karpenter(SETTINGS, ["mutating", "validating"], "growth", (*TYPES, WHOLE_DEVICES)) as scene:
        yield scene


@pytest.fixture(autouse=True)
def cleared(scene: KarpenterScene) -> Iterator[None]:
    yield
    scene.clear()


def stand_ins(scene: KarpenterScene) -> list[Json]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={STAND_IN_LABEL}"
    return list(scene.cluster.request("GET", path)["items"])


def needed(scene: KarpenterScene, pods: list[Json], *others: Json) -> int:
    """Return how many nodes `simulate` finds for pods, where there is none."""
    node = a_node_object("model", fake_node("model", GPUS, MODEL).cards)
    node["metadata"]["annotations"][SERVES_CLAIMS_ANNOTATION] = "true"
    node["status"]["allocatable"] |= {"cpu": "128", "memory": "1Ti"}
    file = scene.cluster.plane.directory / "wanted.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, OUR_CLASS, *others, *pods]}))
    command = [sys.executable, "-m", "gpuledger", "simulate", "-f", str(file)]
    run = subprocess.run(
        [*command, "--add-nodes", "needed", "--like", "model", "-o", "json"],
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(run.stdout)
    assert found["fit"] == len(pods), found
    return 1 + int(found["neededNodes"])


def test_as_many_nodes_come_as_simulate_says_and_all_pods_run(scene: KarpenterScene) -> None:
    cluster = scene.cluster
    whole = [pod(f"whole-{number}", {COUNT: 5}) for number in range(2)]
    shares = [pod(f"share-{number}", {COUNT: 1, MEMORY: 30_000}) for number in range(10)]
    members = gang("train", 2, **{COUNT: 8})
    five = claim("five", request(count=5))
    claims = [claiming("claim", named=["five"])]
    pods = [*whole, *shares, *members, *claims]
    count = needed(scene, pods, five)
    cluster.request("POST", CLAIMS, five)
    cluster.create(*pods)
    scene.wait(lambda: all(each["spec"].get("nodeName") for each in cluster.pods().values()), "all run", COMES_S)
    assert len(scene.nodes()) == count
    cluster.wait(lambda: not stand_ins(scene), "no stand-in is left")
    for node_name in scene.nodes():
        scene.wait_looked_at(node_name, UNCONSOLIDATABLE)
    assert (len(scene.nodes()), stand_ins(scene), scene.leaving()) == (count, [], [])
    assert len(cluster.pods()) == len(names(pods))


LASTS_S, EVERY_S, LONGEST_WAIT_S = 600.0, 8.0, 150.0
"""Of the timeline: how long pods come, how often on average, and how long one may wait for a node."""
REST_S = 10.0


@dataclass
class Timeline:
    """Pods that come and go: each stays for a while once it is bound."""

    scene: KarpenterScene
    dice: random.Random
    begin_s: float = field(default_factory=time.monotonic)
    made: int = 0
    next_s: float = 0.0
    created_s: dict[str, float] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)
    nodes_seen: set[str] = field(default_factory=set)
    stand_ins_seen: set[str] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)
    rests: int = 0
    rest_since_s: float | None = None

    def step(self, *, come: bool) -> None:
        """Let pods come and go, and check what holds at any time."""
        cluster, now_s = self.scene.cluster, time.monotonic() - self.begin_s
        if come and now_s >= self.next_s:
            self.next_s = now_s + self.dice.expovariate(1 / EVERY_S)
            new = self._some()
            cluster.create(*new)
            self.created_s |= dict.fromkeys(names(new), now_s)
        found, wanted = cluster.pods(), stand_ins(self.scene)
        for name, each in found.items():
            if each["spec"].get("nodeName") and name not in self.ends_s:
                self.waits_s.append(now_s - self.created_s[name])
                self.ends_s[name] = now_s + self.dice.uniform(20.0, 90.0)
        cluster.delete(*(name for name in found if self.ends_s.get(name, now_s + 1) <= now_s))
        waiting = {name: now_s - self.created_s[name] for name in found if name not in self.ends_s}
        assert all(waited_s < LONGEST_WAIT_S for waited_s in waiting.values()), (
            f"{waiting} wait; {len(wanted)} stand-ins"
        )
        self.nodes_seen |= self.scene.nodes().keys()
        self.stand_ins_seen |= {each["metadata"]["name"] for each in wanted}
        self._rests(now_s, bool(waiting), len(wanted))

    def _some(self) -> list[Json]:
        self.made += 1
        match self.dice.choice(["whole", "shares", "shares", "gang"]):
            case "whole":
                return [pod(f"whole-{self.made}", {COUNT: self.dice.choice([3, 5, 8])})]
            case "gang":
                return gang(f"gang-{self.made}", 2, **{COUNT: self.dice.choice([2, 5])})
            case _:
                sizes = [self.dice.choice([10_000, 20_000, 30_000]) for _ in range(self.dice.randint(1, 6))]
                return [pod(f"share-{self.made}-{n}", {COUNT: 1, MEMORY: size}) for n, size in enumerate(sizes)]

    def _rests(self, now_s: float, is_waiting: bool, wanted: int) -> None:
        if is_waiting:
            self.rest_since_s = None
        elif self.rest_since_s is None:
            self.rest_since_s = now_s
        elif now_s > self.rest_since_s + REST_S:
            self.rests += 1
            assert wanted == 0, f"{wanted} nodes are asked for, and for {REST_S:g} s no pod has waited"


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_pods_come_and_go_none_waits_for_ever_and_no_node_is_left(
    scene: KarpenterScene, say: Callable[[str], None]
) -> None:
    scene.let_go("100%")
    line = Timeline(scene, random.Random(RUN_SEED))  # noqa: S311 - no secret

    def is_over() -> bool:
        line.step(come=True)
        return time.monotonic() > line.begin_s + LASTS_S

    def are_done() -> bool:
        line.step(come=False)
        return not scene.cluster.pods()

    scene.wait(is_over, "time is over", LASTS_S + 60.0)
    scene.wait(are_done, "all pods have had their time", 400.0)
    scene.cluster.wait(lambda: not stand_ins(scene), "no node is asked for")
    scene.cluster.wait(lambda: not scene.nodes(), "all nodes are gone", COMES_S)
    waits_s = sorted(line.waits_s)
    say(
        f"{len(waits_s)} pods on {len(line.nodes_seen)} nodes, by {len(line.stand_ins_seen)} stand-ins; "
        f"a pod waited for {waits_s[len(waits_s) // 2]:.1f} s in the median, {waits_s[-1]:.1f} s at most; "
        f"{line.rests} looks at rest"
    )
    assert line.rests


TRIES, SHARES = 5, 60


class Stock:
    """Nodes and pods without gpuledger: their device plugin counts devices, and kube-scheduler binds."""

    def __init__(self, scene: KarpenterScene) -> None:
        self.cluster = scene.cluster
        labels = {"gpuledger.dev/ignore": "true"}
        self.cluster.request("POST", NAMESPACES, {"metadata": {"name": STOCK, "labels": labels}})
        pool = node_pool()
        pool["metadata"]["name"] = STOCK
        template = pool["spec"]["template"]
        template["metadata"]["labels"] = {"stock": "true"}
        template["spec"]["requirements"][0]["values"] = [STOCK]
        self.cluster.request("POST", POOLS, pool)

    def create(self, name: str, devices: int) -> None:
        found = pod(name, {COUNT: devices}, schedulerName="default-scheduler", nodeSelector={"stock": "true"})
        found["metadata"]["namespace"] = STOCK
        self.cluster.request("POST", STOCK_PODS, found)

    def bound(self) -> int:
        self._join()
        return sum(bool(each["spec"].get("nodeName")) for each in self.cluster.request("GET", STOCK_PODS)["items"])

    def nodes(self) -> list[Json]:
        return list(self.cluster.request("GET", f"{NODES}?labelSelector=stock=true")["items"])

    def clear(self) -> None:
        self.cluster.request("DELETE", f"{STOCK_PODS}?gracePeriodSeconds=0")
        self.cluster.wait(lambda: not self.nodes(), "no node is left", COMES_S)

    def _join(self) -> None:
        """Play the kubelets of new nodes."""
        for node in self.nodes():
            conditions = node["status"].get("conditions") or ()
            if not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
                amounts = {"cpu": "128", "memory": "1Ti", "pods": "250", COUNT: str(GPUS)}
                ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
                status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
                self.cluster.patch(f"{NODES}/{node['metadata']['name']}/status", {"status": status})


def took_s(condition: Callable[[], bool]) -> float:
    """Return how long it takes until a condition holds."""
    begin_s = time.monotonic()
    while not condition():
        assert time.monotonic() < begin_s + COMES_S
        time.sleep(0.05)
    return time.monotonic() - begin_s


@pytest.mark.long
def test_a_share_gets_a_new_node_about_as_fast_as_a_stock_pod_and_shares_need_fewer_nodes(
    scene: KarpenterScene, say: Callable[[str], None]
) -> None:
    """In one run, one after the other: a pod that needs a node, and pods that want a part of a card each."""
    cluster, stock = scene.cluster, Stock(scene)
    # The stock scheduler would bind an agent's pod to each new node, and no kubelet is there to make it Ready.
    cluster.plane.kubectl("delete", "daemonset", "gpuledger-agent", "--namespace", "gpuledger-system")
    cluster.plane.start_default_scheduler()
    scene.let_go("100%")
    ours_s, stock_s = [], []
    for number in range(TRIES):
        stock.create(f"stock-{number}", GPUS)
        stock_s.append(took_s(lambda: stock.bound() == 1))
        stock.clear()
        cluster.create(pod(f"share-{number}", {COUNT: 1, MEMORY: 30_000}))

        def is_bound() -> bool:
            scene.join()
            return all(each["spec"].get("nodeName") for each in cluster.pods().values())

        ours_s.append(took_s(is_bound))
        scene.clear()
        scene.let_go("100%")
    sizes = [10_000, 20_000, 30_000] * (SHARES // 3)
    for number in range(SHARES):
        stock.create(f"whole-{number}", 1)
    took_s(lambda: stock.bound() == SHARES)
    stock_nodes = len(stock.nodes())
    stock.clear()
    cluster.create(*(pod(f"part-{number}", {COUNT: 1, MEMORY: size}) for number, size in enumerate(sizes)))
    scene.wait(lambda: all(each["spec"].get("nodeName") for each in cluster.pods().values()), "all run", COMES_S)
    ours = len(scene.nodes())
    say(f"from creation to Bind on a new node: {_summed(ours_s)}, a stock pod {_summed(stock_s)}")
    say(f"{SHARES} shares of parts of a card: {ours} nodes; as whole devices: {stock_nodes}")
    assert ours < stock_nodes


def _summed(seconds: list[float]) -> str:
    found = sorted(seconds)
    return f"{found[len(found) // 2]:.1f} s in the median of {len(found)} ({found[0]:.1f} to {found[-1]:.1f})"
