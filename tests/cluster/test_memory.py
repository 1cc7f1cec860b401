"""How much memory operator and agent need, whatever users write: against the limits of the manifests, a fifth to spare.

One letter that is no ASCII makes Python keep a whole text in four bytes a letter: 1.4 MB of JSON are 5.4 MiB then.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.claims import (
    CLAIMS,
    TEMPLATES,
    claim,
    claiming,
    create_class,
    opaque,
    remove_claims,
    serve_claims,
    share,
    template,
)
from cluster.claims import (
    request as asking,
)
from cluster.cluster import COUNT, MEMORY, PODS, Cluster, container, pod
from cluster.test_refused_by_scheduler import explained
from hostile.machine import memory_mib

OPERATOR_MIB, AGENT_MIB = 410, 205
"""Four fifths of the limits in manifests/deployment.yaml and manifests/agent/daemonset.yaml."""

PAGES_MIB = 100
"""What a page, and what it becomes as Python's objects, may take beside what a process has anyway."""

FEW, MANY = 100, 200
"""Claims of 0.3 MB that would show in what a process has; and of 1.3 MB, as many as once ended it."""

LONG = "x" * 1_390_000 + "\N{GRINNING FACE}"
SELECTOR = f'"\N{GRINNING FACE}{"x" * 9_950}" != device.driver'

Json = dict[str, Any]


@pytest.fixture
def claims(cluster: Cluster) -> Iterator[Cluster]:
    """Yield a cluster whose operator has just started, and leave it without claims."""
    create_class(cluster)
    serve_claims(cluster, *cluster.add_nodes(1, gpus=2))
    cluster.installation.restart_operator()
    yield cluster
    remove_claims(cluster)


def long_request(number: int) -> Json:
    selectors = [{"cel": {"expression": f"{SELECTOR} || {number} == {n}"}} for n in range(32)]
    return asking(f"r{number}", selectors=selectors)


def longest_claims(count: int) -> Iterator[Json]:
    """Yield claims of 1.28 MB, nearly as long as etcd takes. The API server needs a second for each."""
    return (claim(f"unused-{n}", *map(long_request, range(4))) for n in range(count))


def long_config(number: int) -> list[Json]:
    """Return configuration of 0.3 MB for our driver, which costs the API server nothing."""
    return [opaque(models=[f"{number}-{n}-{'x' * 9_900}\N{GRINNING FACE}"]) for n in range(32)]


def long_claims(count: int, name: str = "unused") -> Iterator[Json]:
    """Yield claims of 0.3 MB."""
    return (claim(f"{name}-{n}", share("4Gi"), config=long_config(n)) for n in range(count))


def operator_mib(cluster: Cluster) -> int:
    operator = cluster.installation.operator
    assert operator is not None
    assert operator.alive
    return memory_mib(operator.pid)


@pytest.mark.promise("hostile objects")
@pytest.mark.parametrize(
    "unused",
    [
        pytest.param(lambda: long_claims(FEW), id="of 0.3 MB"),
        pytest.param(lambda: longest_claims(MANY), id="of 1.3 MB", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "listed",
    [
        pytest.param(True, id="in the first list"),
        pytest.param(False, id="as they are created", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(900)
def test_claims_that_nobody_uses_take_no_memory(
    claims: Cluster, unused: Callable[[], Iterator[Json]], listed: bool, say: Any, request: pytest.FixtureRequest
) -> None:
    before_mib = operator_mib(claims)
    claims.request("POST", CLAIMS, claim("mine", share("4Gi")))
    if not listed:
        claims.create(claiming("first", named=["mine"]))
        claims.wait_bound("first")
    for body in unused():
        claims.request("POST", CLAIMS, body)
    claims.create(claiming("second", named=["mine"]))
    claims.wait_bound("second")
    claims.request("POST", CLAIMS, claim("later", share("4Gi")))
    claims.create(claiming("third", named=["later"]))
    claims.wait_bound("third")
    most_mib = operator_mib(claims)
    say(f"{request.node.name}: the operator had {before_mib} MiB before, and at most {most_mib}")
    assert most_mib < min(OPERATOR_MIB, before_mib + PAGES_MIB)


def test_a_claim_that_is_too_long_is_refused_in_words_when_a_pod_names_it(claims: Cluster) -> None:
    """Whether it came before the pod or after it, and by a template, too; and others beside it get their cards."""
    [body] = long_claims(1, "long")
    counted = 'gpuledger_bad_input_total{kind="resourceclaims"}'
    claims.request("POST", CLAIMS, body)
    claims.request("POST", CLAIMS, claim("short", share("4Gi")))
    claims.create(claiming("of-long", named=["long-0"]), claiming("of-short", named=["short"]))
    claims.wait_bound("of-short")
    said = claims.wait_refused("of-long", "ResourceClaim long-0: what it asks for has 3")
    assert "65,536 are the most" in said
    assert claims.metric(counted) >= 1
    [after] = long_claims(1, "later")
    claims.create(claiming("of-later", named=["later-0"]), claiming("of-template", ["wide"]))
    claims.wait_refused("of-later", "there is no ResourceClaim later-0")
    claims.request("POST", CLAIMS, after)
    claims.request("POST", TEMPLATES, template("wide", share("4Gi"), config=long_config(0)))
    claims.wait_refused("of-later", "ResourceClaim later-0: what it asks for has")
    claims.wait_refused("of-template", "what it asks for has")


@pytest.mark.timeout(300)
def test_long_claims_that_pods_name_have_room_in_memory_for_their_namespace(claims: Cluster, say: Any) -> None:
    """Each is short enough, and all together are not: pods for whose claims there is no room are refused in words."""
    text = "what the claims of its namespace ask for has more than 2,097,152 bytes"
    for number in range(50):
        parameters = [opaque(models=[f"{number}-{n}-" + "x" * 9_000 + "\N{GRINNING FACE}"]) for n in range(6)]
        claims.request("POST", CLAIMS, claim(f"wide-{number}", share("1Gi"), config=parameters))
    for number in range(5):
        claims.create(claiming(f"p{number}", named=[f"wide-{n}" for n in range(10 * number, 10 * number + 10)]))

    def is_told() -> bool:
        return any(text in message for number in range(5) for message in claims.messages(f"p{number}"))

    claims.wait(is_told, "a pod is told that there is no room")
    say(f"50 claims of 55 kB that pods name: at most {operator_mib(claims)} MiB")
    assert operator_mib(claims) < OPERATOR_MIB


@pytest.fixture(params=[40, pytest.param(90, marks=pytest.mark.long)])
def long_neighbours(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str]]:
    """Yield a cluster with long pods on its node, whose operator has just started; and the name of the node."""
    [node] = cluster.add_nodes(1, gpus=1)
    names = [f"long-{number}" for number in range(request.param)]
    for name in names:
        body = pod(name, container({}, args=[LONG]), schedulerName="default-scheduler", nodeName=node.name)
        cluster.request("POST", PODS, body)
    cluster.installation.restart_operator()
    yield cluster, node.name
    cluster.delete(*names)  # all at once, they would be one answer of 125 MB


@pytest.mark.timeout(300)
def test_long_pods_on_a_node_take_no_memory_of_the_operator_when_somebody_asks_why_another_waits(
    long_neighbours: tuple[Cluster, str], say: Any
) -> None:
    cluster, _ = long_neighbours
    before_mib = operator_mib(cluster)
    cluster.create(pod("p", {COUNT: 1, MEMORY: 1_000, "cpu": 500}))
    cluster.wait_refused("p", "Insufficient cpu")
    cluster.wait(lambda: explained(cluster, "p")["schedulerRefusedAll"], "the operator has seen the pod's condition")
    [found] = explained(cluster, "p")["nodes"]
    assert found["kubeScheduler"]["reason"] == "host-cpu"
    most_mib = operator_mib(cluster)
    say(f"long pods on a node: the operator had {before_mib} MiB before, and at most {most_mib} after `explain`")
    assert most_mib < min(OPERATOR_MIB, before_mib + PAGES_MIB)


AGENT = """
import asyncio, sys
from gpuledger.kube_api import lean_import
lean_import.install()
from gpuledger.agent.agent import AgentStore
from gpuledger.agent.ended_pods import EndedPods, sees_processes
from gpuledger.agent.agent import wait_for_bound_pods
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import PODS
from gpuledger.kube_api.watch import follow

def peak_mib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024

async def main(kubeconfig, node_name):
    client = await KubeClient.connect(kubeconfig)
    store, ended, listed = AgentStore(client), EndedPods(["none"], None, print), asyncio.Event()
    before = peak_mib()
    await sees_processes("nobody", node_name, store)
    await wait_for_bound_pods(node_name, store)
    def listing():
        return lambda uids: listed.set()
    selector = {"fieldSelector": f"spec.nodeName={node_name}"}
    following = asyncio.create_task(follow(client, PODS, selector, ended.observe, listing))
    await listed.wait()
    following.cancel()
    await client.close()
    print(before, peak_mib())

asyncio.run(main(*sys.argv[1:]))
"""
"""What an agent reads of its node's pods, in a process of its own."""


@pytest.mark.timeout(300)
def test_long_pods_on_a_node_take_no_memory_of_its_agent(
    long_neighbours: tuple[Cluster, str], tmp_path: Path, say: Any
) -> None:
    cluster, node_name = long_neighbours
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    words = [sys.executable, str(program), str(cluster.plane.kubeconfig), node_name]
    told = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    before_mib, most_mib = map(int, told.stdout.split())
    say(f"long pods on a node: an agent's process had {before_mib} MiB before, and at most {most_mib} after its reads")
    assert most_mib < min(AGENT_MIB, before_mib + PAGES_MIB)
