"""Many nodes come back at once after the ledger was lost: each costs one write of its Node, and none is given twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest

from cluster.cluster import ALLOCATIONS, COUNT, MEMORY, MERGE_PATCH, NODES, Cluster, phase, pod
from cluster.shared import SharedPlane
from cluster.test_agents_and_kubelets import AGENTS, agent_body, say_ready
from gpuledger.agent.simulated import FakeNode
from gpuledger.formats.confirmation import GRANTED_ANNOTATION, answer_text, asked
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.watch import follow
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder
from gpuledger.workflows.kinds import AGENT_SELECTOR

MANY, FEW = 500, 12
WRITES = ("create", "patch", "update")
LOOK_S = 4.0
NODES_LOST_S = 120.0


class FakeAgents:
    """Agents of many nodes, in this process: a pod for each, and answers with what was held before the loss."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.granted: dict[str, list[Holder]] = {}
        """Node name -> the shares of its containers."""

    def add(self, node: FakeNode) -> None:
        """Create an agent's pod that is Ready, on a node that says that its agent answers."""
        name = self._cluster.request("POST", AGENTS, agent_body(node))["metadata"]["name"]
        say_ready(self._cluster, name, True)
        change = {"metadata": {"annotations": {GRANTED_ANNOTATION: answer_text("")}}}
        self._cluster.patch(f"{NODES}/{node.name}", change)

    async def play(self, end: Event) -> None:
        """Answer all questions until the end."""
        client = await KubeClient.connect(self._cluster.plane.kubeconfig)
        answered: dict[str, str] = {}
        tasks: set[asyncio.Task[None]] = set()

        def see(found: Json, gone: bool) -> None:
            node_name, token = found["spec"]["nodeName"], asked(found)
            if not gone and token and answered.get(node_name) != token:
                answered[node_name] = token
                tasks.add(asyncio.create_task(self._answer(client, node_name, token)))

        parameters = {"labelSelector": AGENT_SELECTOR}
        following = asyncio.create_task(follow(client, AGENTS, parameters, see, lambda: lambda _: None))
        try:
            await asyncio.to_thread(end.wait)
            await asyncio.gather(*tasks)
        finally:
            following.cancel()
            await client.close()

    async def _answer(self, client: KubeClient, node_name: str, token: str) -> None:
        text = answer_text(token, self.granted.get(node_name, ()))
        change = {"metadata": {"annotations": {GRANTED_ANNOTATION: text}}}
        await client.request("PATCH", f"{NODES}/{node_name}", change, content_type=MERGE_PATCH)


@contextmanager
def answering(agents: FakeAgents) -> Iterator[None]:
    """Have the agents answer meanwhile."""
    end = Event()
    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(asyncio.run, agents.play(end))
        try:
            yield
        finally:
            end.set()
            playing.result()


@pytest.fixture
def cluster(shared: SharedPlane) -> Iterator[Cluster]:
    with shared.cluster({}) as cluster:
        yield cluster
        cluster.request("DELETE", f"{AGENTS}?gracePeriodSeconds=0&labelSelector={AGENT_SELECTOR}")
        cluster.clear()


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_a_cluster_whose_ledger_was_lost_opens_with_one_write_of_each_node(
    cluster: Cluster, count: int, say: Callable[[str], None]
) -> None:
    agents = FakeAgents(cluster)
    nodes = cluster.add_nodes(count)
    for node in nodes:
        agents.add(node)
    names = [f"before-{number}" for number in range(FEW)]
    cluster.create(*(pod(name, {COUNT: 8}) for name in names))
    cluster.wait_bound(*names)
    cluster.settle()
    for allocation in cluster.cards().values():
        stored = stored_card(allocation)
        agents.granted.setdefault(stored.card.node_name, []).extend(stored.holders or ())
    before = cluster.holders()
    cluster.installation.kill_operator()
    cluster.request("DELETE", ALLOCATIONS)
    assert cluster.request("GET", ALLOCATIONS)["items"] == []
    new = [f"new-{number}" for number in range(FEW)]
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 1_000}) for name in new))
    offset, begin_s = cluster.plane.audit_offset(), time.time()
    with answering(agents):
        cluster.installation.start_operator()

        def are_open() -> bool:
            time.sleep(LOOK_S)  # to look at thousands of cards takes a second of the API server
            return [phase(card) for card in cluster.cards().values()] == ["Ready"] * 8 * count

        cluster.wait(are_open, "all cards are open again", NODES_LOST_S)
    of_cards = [e for e in cluster.plane.audit_events(offset) if e.resource == "gpuallocations" and e.verb in WRITES]
    took_s = max(event.timestamp.timestamp() for event in of_cards) - begin_s
    say(f"{8 * count} cards of {count} nodes open again {took_s:.1f} s after the operator was started")
    cluster.settle()
    held = cluster.holders()
    alone = {uuid: [holder["pod"] for holder in listed] for uuid, listed in held.items() if before[uuid]}
    assert alone == {uuid: [holder["pod"] for holder in before[uuid]] for uuid in alone}
    assert len(alone) == 8 * FEW
    writes = [
        event.name
        for event in cluster.plane.audit_events(offset)
        if event.resource == "nodes" and not event.subresource and event.verb in WRITES
    ]
    assert sorted(writes) == sorted(node.name for node in nodes)
    # Each card is created and gets a status; one that is held, a status before its holder, too.
    assert len(of_cards) <= 3 * 8 * count + 2 * len(alone) + count
    if count > FEW:
        cluster.wait_bound(*new)
    cluster.check_consistent()
