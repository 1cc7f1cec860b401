"""Cards of nodes that keep another system's device plugin: closed under pods that the ledger does not know."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, cast

import pytest

from builders import a_card
from effort import seeds_for, times
from fakes.api_server import ApiServer
from fakes.objects import DIALECTS, GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import LONGEST_RELEASE_S, RELEASE_DELAY_S, OperatorParts
from fakes.virtual_time import LoopClock
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.kubernetes.pod import bound_node
from gpuledger.model.card import Amounts, CardPhase
from gpuledger.model.errors import BindFailed
from gpuledger.model.share import DEFAULT_GRACE_S, Misfit, Pod
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.release import ReleaseTimes
from gpuledger.workflows.repair import SETTLE_S, Auditor, AuditSettings

Json = dict[str, Any]
CARD_MIB, SLOTS = 16_384, 10
NO_SUCH_CARD = "no card without pods that are not in the ledger"
HAMI_SCHEDULER = "hami-scheduler"


def hami_node(name: str = "hami-1", cards: int = 1, served_before: str = "") -> Json:
    """Return a node as HAMi's device plugin registers it."""
    register = "".join(
        f"{uuid(name, index)},{SLOTS},{CARD_MIB},100,NVIDIA-Tesla T4,0,true,{index},hami-core:"
        for index in range(cards)
    )
    metadata = {"name": name, "annotations": {"hami.io/node-nvidia-register": register}}
    amounts = {"cpu": "64", GPU: str(SLOTS * cards), **({served_before: "0"} if served_before else {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": amounts}}


def uuid(node_name: str, index: int) -> str:
    return f"GPU-{node_name}-{index}"


def hamis(name: str, card: str = "", memory_mib: int = 12_000, **fields: Any) -> Json:
    """Return a pod as HAMi's scheduler binds it to a node, told of this card; its kubelet has taken it up."""
    fields = {"node_name": "hami-1", "started": True, "phase": "Running", "scheduler_name": HAMI_SCHEDULER, **fields}
    pod = a_pod_object(name, {GPU: "1", MEMORY: str(memory_mib), "nvidia.com/gpucores": "60"}, **fields)
    if card:
        pod["metadata"]["annotations"] = marks(f"{card},NVIDIA,{memory_mib},60:;", fields["node_name"])
    return pod


def marks(told: str, node_name: str = "hami-1") -> dict[str, str]:
    """Return what HAMi's scheduler and device plugin write to a pod."""
    return {
        "hami.io/vgpu-node": node_name,
        "hami.io/vgpu-time": "1",
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/vgpu-devices-allocated": told,
    }


def bound_by_a_scheduler(pod: Json) -> Json:
    """Return the pod as a Binding leaves it, before its kubelet has decided."""
    at = "2030-01-01T00:00:00Z"
    pod["status"] = {"phase": "Pending"}
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]
    return pod


class Life:
    """Of a process: what it had set a timer for does not happen after its end."""

    ended = False

    def is_active(self) -> bool:
        return not self.ended


class Cluster:
    """Nodes with HAMi's plugin, and an operator that has looked at everything."""

    def __init__(self, api: ApiServer, *nodes: Json, adopt_pods: bool = False) -> None:
        self.api, self.adopt_pods, self.life = api, adopt_pods, Life()
        for node in nodes:
            api.put_node(node)
        self.parts = self.restart()

    def restart(self) -> OperatorParts:
        """End the operator, whatever it is at, and start it anew, without a memory."""
        self.life.ended = True
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        self.life = Life()
        names = ("gpuledger", HAMI_SCHEDULER)
        leadership = cast(Leadership, self.life)
        self.parts = OperatorParts(self.api, adopt_pods=self.adopt_pods, scheduler_names=names, leadership=leadership)
        return self.parts

    async def start(self) -> None:
        """Have the operator look at all there is, and do what it finds to do at once."""
        await self.parts.observer.take_over()
        await self.settle()

    async def settle(self) -> None:
        await self.parts.idle()

    async def later(self) -> None:
        """Wait until what was seen has been looked at again."""
        await asyncio.sleep(SETTLE_S + 0.1)
        await self.parts.adopter.worker.idle()
        await self.settle()

    async def show(self, pod: Json) -> None:
        """Have the watch show a pod that somebody else has created, or changed."""
        self.api.put_pod(pod)
        await self.settle()

    async def gone(self, name: str) -> None:
        self.api.delete_pod(name)
        await self.settle()

    def why_not(self, name: str, *node_names: str, memory_mib: int = 1_000) -> str:
        """Ask where a pod of ours can go; return why it can't go to the last of the nodes, empty if it can."""
        if ("default", name) not in self.api.pods:
            self.api.put_pod(a_pod_object(name, {GPU: "1", MEMORY: str(memory_mib)}))
            self.parts.watch()
        answer = self.parts.filter(name, *(node_names or ("hami-1",)))
        return "" if answer.node_names else answer.refused[(node_names or ("hami-1",))[-1]]

    def phases(self) -> dict[str, str]:
        return {found.card.uuid: found.phase for found in map(stored_card, self.api.cards.values())}

    def auditor(self) -> Auditor:
        names = ("gpuledger", HAMI_SCHEDULER)
        release_times = ReleaseTimes(RELEASE_DELAY_S, LONGEST_RELEASE_S)
        settings = AuditSettings(
            names,
            DIALECTS,
            release_times,
            0.0,
        )
        return Auditor(self.api.store, settings, clock=LoopClock())


async def a_cluster(api: ApiServer, *nodes: Json, adopt_pods: bool = False) -> Cluster:
    cluster = Cluster(api, *(nodes or (hami_node(),)), adopt_pods=adopt_pods)
    await cluster.start()
    return cluster


# What is closed, and until when.


async def test_a_card_under_a_pod_of_another_scheduler_takes_nobody_until_that_has_ended(api: ApiServer) -> None:
    cluster = await a_cluster(api)
    await cluster.show(hamis("old", uuid("hami-1", 0)))
    assert cluster.why_not("new", memory_mib=12_000) == NO_SUCH_CARD
    assert cluster.phases() == {uuid("hami-1", 0): CardPhase.UNACCOUNTED}
    await cluster.show({**hamis("old", uuid("hami-1", 0)), "status": {"phase": "Succeeded"}})
    assert cluster.phases() == {uuid("hami-1", 0): CardPhase.READY}
    assert cluster.why_not("new") == ""


async def test_pods_that_were_bound_while_no_operator_ran_are_looked_at_before_anybody_is_placed(
    api: ApiServer,
) -> None:
    cluster = await a_cluster(api)
    api.put_pod(hamis("old", uuid("hami-1", 0)))
    cluster.restart()
    await cluster.start()
    assert cluster.why_not("new", memory_mib=12_000) == NO_SUCH_CARD


async def test_the_phase_is_written_once_and_a_restart_writes_nothing(api: ApiServer) -> None:
    cluster = await a_cluster(api)
    before = len(api.writes())
    for number in range(20):
        await cluster.show(hamis(f"old-{number}", uuid("hami-1", 0), 500))
    assert len(api.writes()) == before + 1
    cluster.restart()
    await cluster.start()
    assert len(api.writes()) == before + 1
    for number in range(20):
        await cluster.show({**hamis(f"old-{number}"), "status": {"phase": "Failed"}})
    assert len(api.writes()) == before + 2


async def test_only_the_cards_that_its_plugin_was_told_of_are_closed(api: ApiServer) -> None:
    cluster = await a_cluster(api, hami_node(cards=3), hami_node("hami-2"))
    await cluster.show(hamis("old", uuid("hami-1", 1)))
    closed = {card for card, phase in cluster.phases().items() if phase == CardPhase.UNACCOUNTED}
    assert closed == {uuid("hami-1", 1)}


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"hami.io/vgpu-devices-allocated": f"{uuid('hami-1', 0)},NVIDIA,12000,60:;"},
        marks(f"{uuid('hami-1', 7)},NVIDIA,12000,60:;"),
        marks(f"{uuid('hami-2', 0)},NVIDIA,12000,60:;"),
        marks(f"{uuid('hami-1', 0)},NVIDIA,12000,60:;", "hami-2"),
        marks(f"{uuid('hami-1', 0)},NVIDIA,6000,30:{uuid('hami-1', 1)},NVIDIA,6000,30:;"),
        marks("nonsense"),
    ],
    ids=["none", "no marks", "no card", "another node's card", "for another node", "two for one", "unreadable"],
)
async def test_where_nothing_says_which_card_it_has_all_of_its_node_are_closed_and_no_others(
    api: ApiServer, annotations: dict[str, str]
) -> None:
    cluster = await a_cluster(api, hami_node(cards=2), hami_node("hami-2"))
    pod = hamis("old")
    pod["metadata"]["annotations"] = annotations
    await cluster.show(pod)
    assert cluster.why_not("new", "hami-1") == NO_SUCH_CARD
    assert cluster.why_not("other", "hami-2") == ""


async def test_a_plugin_that_was_told_of_fewer_cards_than_are_counted_may_have_given_others(api: ApiServer) -> None:
    cluster = await a_cluster(api, hami_node(cards=2))
    pod = hamis("old", uuid("hami-1", 0))
    pod["spec"]["containers"][0]["resources"]["limits"][GPU] = "2"
    await cluster.show(pod)
    assert set(cluster.phases().values()) == {CardPhase.UNACCOUNTED}


async def test_a_card_with_a_conflict_takes_nobody_on_a_node_of_our_own_agent_either(api: ApiServer) -> None:
    card = a_card(0)
    api.put_card(card)
    cluster = await a_cluster(api, a_node_object("node-a", [card]))
    found = Misfit(Pod("uid-x", "default", "x"), Amounts(12_000, 0, 1), "the card has no room for the pod")
    await cluster.parts.journal.show_conflict(card.uuid, found)
    await cluster.settle()
    assert cluster.why_not("new", "node-a") == NO_SUCH_CARD
    assert cluster.phases() == {card.uuid: CardPhase.UNACCOUNTED}


async def test_a_pod_that_the_plugin_before_has_given_a_card_counts(api: ApiServer) -> None:
    """As in the 200-node report: the plugin was swapped under pods that go on, and the node still lists its name."""
    cluster = await a_cluster(api, hami_node(served_before="volcano.sh/gpu-number"))
    old = a_pod_object(
        "old", {"volcano.sh/gpu-number": "1"}, node_name="hami-1", started=True, scheduler_name="volcano"
    )
    await cluster.show(old)
    assert cluster.why_not("new") == NO_SUCH_CARD


async def test_a_pod_that_was_bound_and_waits_for_its_kubelet_counts(api: ApiServer) -> None:
    cluster = await a_cluster(api)
    await cluster.show(bound_by_a_scheduler(hamis("on-its-way", uuid("hami-1", 0))))
    assert cluster.why_not("new") == NO_SUCH_CARD


async def test_a_node_that_is_seen_after_its_pods_is_closed_from_the_beginning(api: ApiServer) -> None:
    api.put_pod(hamis("old", uuid("hami-1", 0)))
    cluster = Cluster(api)
    await cluster.start()
    api.put_node(hami_node())
    await cluster.settle()
    assert cluster.phases() == {uuid("hami-1", 0): CardPhase.UNACCOUNTED}
    assert cluster.why_not("new") == NO_SUCH_CARD


async def test_a_pod_that_was_deleted_by_force_keeps_its_card_closed_for_a_while(api: ApiServer) -> None:
    cluster = await a_cluster(api)
    await cluster.show(hamis("old", uuid("hami-1", 0)))
    await cluster.gone("old")
    await asyncio.sleep(DEFAULT_GRACE_S + RELEASE_DELAY_S - 0.1)
    assert cluster.why_not("new") == NO_SUCH_CARD
    await asyncio.sleep(0.2)
    assert cluster.why_not("new") == ""


async def test_explain_names_the_pod_and_what_opens_the_card(api: ApiServer) -> None:
    cluster = await a_cluster(api)
    await cluster.show(hamis("old", uuid("hami-1", 0)))
    assert cluster.why_not("new")
    explanation = await cluster.parts.explainer.explain("default", "new")
    (node,) = explanation.nodes
    (card,) = node.cards
    assert explanation.reason == "unaccounted"
    assert card.text == "pod default/old may be on it, and its share is not in the ledger"
    assert "default/old" not in explanation.summary  # anybody who may read the waiting pod reads that
    assert "that are not in the ledger are entered" in node.remedy


# All ways to a card.


async def test_room_that_is_on_hold_is_not_bound_once_somebody_may_use_the_card(api: ApiServer) -> None:
    cluster = await a_cluster(api)
    assert cluster.why_not("new", memory_mib=12_000) == ""
    await cluster.show(hamis("old", uuid("hami-1", 0)))
    with pytest.raises(BindFailed, match="may be in use by a pod that is not in the ledger"):
        await cluster.parts.bind("new", "hami-1")
    assert cluster.parts.shares_left("uid-new") == []


async def test_a_bind_without_a_hold_is_refused(api: ApiServer) -> None:
    cluster = await a_cluster(api)
    await cluster.show(hamis("old", uuid("hami-1", 0)))
    api.put_pod(a_pod_object("new", {GPU: "1", MEMORY: "1000"}))
    with pytest.raises(BindFailed, match=NO_SUCH_CARD):
        await cluster.parts.bind("new", "hami-1")


async def test_a_pod_that_waits_for_the_plugins_lock_is_not_bound_beside_the_one_that_had_it(api: ApiServer) -> None:
    """HAMi's scheduler holds the lock of the node when it binds; that pod is seen while ours waits for the lock."""
    cluster = await a_cluster(api)
    assert cluster.why_not("new", memory_mib=12_000) == ""
    node = api.nodes["hami-1"]
    node["metadata"]["annotations"]["hami.io/mutex.lock"] = "2126-01-01T00:00:00Z,default,old"
    api.put_node(node)
    theirs = bound_by_a_scheduler(hamis("old", uuid("hami-1", 0)))
    theirs["metadata"]["annotations"]["hami.io/bind-phase"] = "allocating"
    api.put_pod(theirs)  # the watch lags behind
    binding = asyncio.create_task(cluster.parts.bind("new", "hami-1"))
    await asyncio.sleep(0.5)
    cluster.parts.watch()
    node = api.nodes["hami-1"]
    del node["metadata"]["annotations"]["hami.io/mutex.lock"]
    api.put_node(node)
    with pytest.raises(BindFailed):
        await binding
    await asyncio.sleep(10)
    assert bound_node(api.pods["default", "new"]) == ""
    assert cluster.parts.shares_left("uid-new") == []


async def test_nobody_is_evicted_from_a_card_that_the_pod_could_not_get(api: ApiServer) -> None:
    cluster = await a_cluster(api)
    assert cluster.why_not("low", memory_mib=2_000) == ""
    await cluster.parts.bind("low", "hami-1")
    await cluster.settle()
    await cluster.show(hamis("old", uuid("hami-1", 0)))
    api.put_pod(a_pod_object("high", {GPU: "1", MEMORY: "15000"}, priority=1000))
    cluster.parts.watch()
    assert cluster.why_not("high") == NO_SUCH_CARD
    await cluster.parts.preemption.decide()
    await cluster.settle()
    assert ("default", "low") in api.pods
    assert cluster.parts.ledger.promises.claims_of("uid-high") == []


# How a card opens.


async def test_the_operator_enters_the_share_where_it_may_and_the_rest_of_the_card_opens(api: ApiServer) -> None:
    cluster = await a_cluster(api, adopt_pods=True)
    await cluster.show(hamis("old", uuid("hami-1", 0)))
    assert cluster.why_not("small") == NO_SUCH_CARD
    await cluster.later()
    assert cluster.phases() == {uuid("hami-1", 0): CardPhase.READY}
    assert cluster.why_not("small") == ""
    assert cluster.why_not("large", memory_mib=12_000) == "no card with 12000 MiB free"


async def migrate(cluster: Cluster) -> None:
    await cluster.auditor().migrate(("gpuledger", HAMI_SCHEDULER), dry_run=False)


async def audit(cluster: Cluster) -> None:
    await cluster.auditor().repair(adopt=True)


async def adopt(cluster: Cluster) -> None:
    cluster.adopt_pods = True
    cluster.restart()
    await cluster.start()
    await cluster.later()


ORDERS = list(itertools.permutations((migrate, audit, adopt)))


@pytest.mark.parametrize("steps", ORDERS, ids=lambda steps: "-".join(step.__name__ for step in steps))
async def test_migrate_adopt_and_audit_in_every_order(api: ApiServer, steps: tuple[Callable[..., Any], ...]) -> None:
    """Two that fit together and one that does not: whoever comes first enters the same, and the rest is a conflict."""
    cluster = await a_cluster(api, hami_node(cards=2))
    for name, card, memory_mib in (("a", 0, 12_000), ("b", 0, 4_000), ("c", 1, 12_000), ("d", 1, 12_000)):
        pod = hamis(name, uuid("hami-1", card), memory_mib)
        pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] = "30"
        pod["metadata"]["annotations"] = marks(f"{uuid('hami-1', card)},NVIDIA,{memory_mib},30:;")
        await cluster.show(pod)
    for step in steps:
        await step(cluster)
        await cluster.settle()
        assert cluster.why_not(f"after-{step.__name__}", memory_mib=5_000) != ""
    first, second = (stored_card(api.cards[uuid("hami-1", index).lower()]) for index in (0, 1))
    assert {holder.pod.name for holder in first.holders or ()} == {"a", "b"}
    assert len(second.holders or ()) == len(second.misfits) == 1
    assert (first.phase, second.phase) == (CardPhase.READY, CardPhase.UNACCOUNTED)


@pytest.mark.parametrize("adopt_pods", [True, False], ids=["by the operator", "by a person's word before"])
async def test_when_the_other_holder_of_a_conflict_leaves_its_share_is_entered_and_the_card_opens(
    api: ApiServer, adopt_pods: bool
) -> None:
    cluster = await a_cluster(api, adopt_pods=True)
    await cluster.show(hamis("first", uuid("hami-1", 0)))
    await cluster.later()
    await cluster.show(hamis("second", uuid("hami-1", 0), 13_000))
    await cluster.later()
    assert [misfit.pod.name for misfit in stored_card(api.cards[uuid("hami-1", 0).lower()]).misfits] == ["second"]
    cluster.adopt_pods = adopt_pods
    cluster.restart()
    await cluster.start()
    await cluster.later()
    assert cluster.why_not("new") == NO_SUCH_CARD
    await cluster.show({**hamis("first", uuid("hami-1", 0)), "status": {"phase": "Succeeded"}})
    assert cluster.why_not("new") == NO_SUCH_CARD
    await cluster.later()
    card = stored_card(api.cards[uuid("hami-1", 0).lower()])
    assert ([holder.pod.name for holder in card.holders or ()], card.misfits) == (["second"], ())
    assert card.phase == CardPhase.READY
    assert cluster.why_not("new") == ""


async def test_a_conflict_that_ends_with_its_pod_opens_the_card_without_a_full_list(api: ApiServer) -> None:
    cluster = await a_cluster(api, adopt_pods=True)
    for name in ("first", "second"):
        await cluster.show(hamis(name, uuid("hami-1", 0)))
        await cluster.later()
    await cluster.show({**hamis("second", uuid("hami-1", 0)), "status": {"phase": "Failed"}})
    await cluster.later()
    assert cluster.phases() == {uuid("hami-1", 0): CardPhase.READY}


# What users can't do.


def by_hand(
    name: str = "hostile", started: bool = False, limits: Mapping[str, object] | None = None, **fields: Any
) -> Json:
    """Return a pod that a user has created with a node in it, and HAMi's marks."""
    fields = {"node_name": "hami-1", "scheduler_name": HAMI_SCHEDULER, "started": started, **fields}
    pod = a_pod_object(name, {GPU: "1", MEMORY: "1"} if limits is None else limits, **fields)
    pod["metadata"]["annotations"] = marks(f"{uuid('hami-1', 0)},NVIDIA,16384,100:;", fields["node_name"])
    return pod


def too_long() -> Json:
    pod = bound_by_a_scheduler(by_hand())
    pod["metadata"]["annotations"]["padding"] = "x" * 300_000
    return pod


@pytest.mark.parametrize("adopt_pods", [True, False])
@pytest.mark.parametrize(
    "pod",
    [
        by_hand(),
        by_hand(phase="Failed", started=True),
        by_hand(started=True, limits={MEMORY: "1", "nvidia.com/gpucores": "100"}),
        by_hand(started=True, limits={"volcano.sh/vgpu-number": "1"}),
        by_hand(started=True, limits={GPU: "0"}),
        by_hand(started=True, node_name="elsewhere"),
        too_long(),
    ],
    ids=[
        "its kubelet has not taken it up",
        "its plugin has said no",
        "it counts no cards",
        "nobody serves the name by which it counts",
        "it counts none",
        "it is on another node",
        "it is too long for its kubelet",
    ],
)
async def test_a_user_does_not_close_a_card_by(api: ApiServer, pod: Json, adopt_pods: bool) -> None:
    cluster = await a_cluster(api, adopt_pods=adopt_pods)
    await cluster.show(pod)
    await cluster.later()
    cluster.restart()
    await cluster.start()
    await cluster.later()
    assert cluster.phases() == {uuid("hami-1", 0): CardPhase.READY}
    assert cluster.why_not("honest", memory_mib=CARD_MIB) == ""


async def test_our_annotation_does_not_move_a_share_to_a_card_that_the_plugin_did_not_give(api: ApiServer) -> None:
    cluster = await a_cluster(api, hami_node(cards=2), adopt_pods=True)
    pod = hamis("hostile", uuid("hami-1", 0))
    forged = f'{{"main": [{{"uuid": "{uuid("hami-1", 1)}", "memoryMiB": {CARD_MIB}, "cores": 0}}]}}'
    pod["metadata"]["annotations"]["gpuledger.dev/devices"] = forged
    await cluster.show(pod)
    await cluster.later()
    assert cluster.phases() == {uuid("hami-1", 0): CardPhase.UNACCOUNTED, uuid("hami-1", 1): CardPhase.READY}
    assert cluster.why_not("honest", memory_mib=CARD_MIB) == ""


async def test_a_pod_without_a_share_on_a_node_of_our_own_agent_closes_nothing(api: ApiServer) -> None:
    """Its agent starts no container without a share, whatever the kubelet says of the pod."""
    cluster = await a_cluster(api, a_node_object("node-a", [a_card(0)]))
    await cluster.show(hamis("hostile", "GPU-node-a-0", node_name="node-a"))
    assert cluster.why_not("honest", "node-a") == ""


# How much work it is.


async def test_fifty_nodes_with_two_hundred_such_pods(api: ApiServer) -> None:
    nodes = [hami_node(f"hami-{number}", cards=4) for number in range(50)]
    for number in range(200):
        node_name = f"hami-{number % 50}"
        api.put_pod(hamis(f"old-{number}", uuid(node_name, number // 50), node_name=node_name))
    cluster = Cluster(api, *nodes)
    await cluster.start()
    assert set(cluster.phases().values()) == {CardPhase.UNACCOUNTED}
    names = [node["metadata"]["name"] for node in nodes]
    assert cluster.why_not("new", *names) == NO_SUCH_CARD
    await asyncio.sleep(1)  # the lists of the cards' managers go
    quiet = len(api.writes())
    await cluster.parts.observer.resync()
    await cluster.later()
    assert len(api.writes()) == quiet
    cluster.adopt_pods = True
    cluster.restart()
    await cluster.start()
    await cluster.later()
    assert set(cluster.phases().values()) == {CardPhase.READY}
    assert all(len(stored_card(card).holders or ()) == 1 for card in api.cards.values())
    assert cluster.why_not("new", *names) == ""


# At random.


class Lives:
    """Two schedulers for one node: HAMi's, which looks at what really runs, and ours."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.random, self.number = cluster, Random(seed), itertools.count()  # noqa: S311

    async def step(self) -> None:
        acts = (self.theirs, self.theirs, self.ours, self.ours, self.ours, self.end, self.end, self.wait, self.restart)
        await self.random.choice(acts)()
        await self.cluster.settle()
        for card, used in self.running().items():
            assert used <= CARD_MIB, card

    def running(self) -> dict[str, int]:
        """Return what really runs on each card, by what its plugin was told: MiB."""
        used = {uuid("hami-1", index): 0 for index in (0, 1)}
        for pod in self.cluster.api.pods.values():
            if bound_node(pod) and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                told = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
                card, _, memory_mib, _ = told.rstrip(":;").split(",")
                used[card] += int(memory_mib)
        return used

    async def theirs(self) -> None:
        """Let HAMi's scheduler bind a pod where it fits beside all that runs."""
        memory_mib = self.random.choice((3_000, 6_000, 12_000))
        fitting = [card for card, used in self.running().items() if used + memory_mib <= CARD_MIB]
        if fitting:
            pod = hamis(f"theirs-{next(self.number)}", self.random.choice(fitting), memory_mib)
            pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] = "1"
            self.cluster.api.put_pod(bound_by_a_scheduler(pod) if self.random.random() < 0.5 else pod)
            self.cluster.parts.watch()

    async def ours(self) -> None:
        """Place a pod of ours; sometimes the other scheduler binds one between Filter and Bind."""
        name = f"ours-{next(self.number)}"
        if self.cluster.why_not(name, memory_mib=self.random.choice((3_000, 6_000, 12_000))):
            return
        if self.random.random() < 0.5:
            await self.theirs()
        try:
            await self.cluster.parts.bind(name, "hami-1")
        except BindFailed:
            return
        found = dict(self.cluster.api.pods["default", name])
        found["status"] = {"phase": "Running", "startTime": "2030-01-01T00:00:00Z"}
        found["metadata"] = {**found["metadata"], "annotations": {**found["metadata"]["annotations"]}}
        found["metadata"]["annotations"]["hami.io/bind-phase"] = "success"
        self.cluster.api.put_pod(found)

    async def end(self) -> None:
        running = [pod for pod in self.cluster.api.pods.values() if bound_node(pod)]
        if running:
            pod = self.random.choice(running)
            self.cluster.api.put_pod({**pod, "status": {"phase": "Succeeded"}})

    async def wait(self) -> None:
        await self.cluster.later()

    async def restart(self) -> None:
        self.cluster.adopt_pods = self.random.random() < 0.7
        self.cluster.restart()
        await self.cluster.start()


@pytest.mark.parametrize("seed", seeds_for("strangers", times(10, 300, check=2)))
async def test_what_really_runs_on_a_card_never_exceeds_it(api: ApiServer, seed: int) -> None:
    lives = Lives(await a_cluster(api, hami_node(cards=2)), seed)
    for _ in range(40):
        await lives.step()
