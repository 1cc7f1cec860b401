"""Over a cluster that runs HAMi or Volcano already: its manifests, registers and device plugins go on working."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from cluster.cluster import COUNT, MEMORY, NODES, PODS, Cluster, RequestFailed, devices, phase, pod, uuids
from cluster.moved_over import command, moved_over
from cluster.shared import SharedPlane
from effort import times
from fakes.device_plugins import HamiPlugin, PluginApi, VolcanoPlugin, annotations

Json = dict[str, Any]
VGPU, VGPU_MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
HAMI_REGISTER, VOLCANO_REGISTER = "hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register"
CARD_MIB = 24564
PLUGIN_TIMEOUT_S = 5.0
EQUAL_PODS = times(24, 50)
BURST_DEADLINE_S = 180.0


@pytest.fixture(scope="module")
def adopting(shared: SharedPlane) -> Iterator[Cluster]:
    """Yield a cluster whose operator serves the names of the other schedulers, and adopts their pods."""
    settings = {
        "extra_scheduler_names": ["volcano", "hami-scheduler"],
        "adopt_pods": True,
        "plugin_timeout_s": PLUGIN_TIMEOUT_S,
        "resync_interval_s": 2,
        "release_delay_s": 1,
        "longest_release_s": 2,
    }
    with moved_over(shared.lent(), settings) as cluster:
        yield cluster


@pytest.fixture
def cluster(adopting: Cluster) -> Iterator[Cluster]:
    """Yield a cluster without nodes and pods, and leave it so."""
    yield adopting
    adopting.clear()


class Plugged:
    """The API server as a device plugin sees it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def node(self, name: str) -> Json:
        return self._cluster.request("GET", f"{NODES}/{name}")

    def pod(self, namespace: str, name: str) -> Json:
        return self._cluster.pod(name)

    def all_pods(self) -> list[Json]:
        return list(self._cluster.pods().values())

    def annotate_pod(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        self._cluster.patch(f"{PODS}/{name}", {"metadata": {"annotations": annotations}})

    def annotate_node(self, name: str, annotations: dict[str, str | None], resource_version: str) -> bool:
        metadata = {"annotations": annotations, "resourceVersion": resource_version}
        try:
            self._cluster.patch(f"{NODES}/{name}", {"metadata": metadata})
        except RequestFailed as error:
            if error.status != 409:
                raise
            return False
        return True


PLUGINS: dict[str, Callable[[PluginApi, str], HamiPlugin | VolcanoPlugin]] = {
    "hami": HamiPlugin,
    "volcano": VolcanoPlugin,
}


def hami_register(node_name: str, cards: int) -> str:
    return "".join(
        f"GPU-{node_name}-{i},10,{CARD_MIB},100,NVIDIA-RTX 4090,{i // 4},true,{i},hami-core:" for i in range(cards)
    )


def volcano_register(node_name: str, cards: int) -> str:
    return "".join(f"GPU-{node_name}-{i},10,{CARD_MIB},NVIDIA-RTX 4090,true,hami-core:" for i in range(cards))


def add_node(cluster: Cluster, name: str, dialect: str, cards: int = 8, **resources: int) -> None:
    """Register a node as the other system's device plugin does."""
    annotation, register, count = {
        "hami": (HAMI_REGISTER, hami_register(name, cards), COUNT),
        "volcano": (VOLCANO_REGISTER, volcano_register(name, cards), VGPU),
        "classic": ("volcano.sh/other", "", "volcano.sh/gpu-number"),
    }[dialect]
    amounts = {"cpu": 128, "memory": "1Ti", "pods": 250, count: 10 * cards}
    cluster.create_node(name, amounts, annotations={annotation: register})
    if register:
        mine = [f"GPU-{name}-{i}" for i in range(cards)]
        cluster.wait(
            lambda: all(phase(cluster.cards().get(uuid, {})) == "Ready" for uuid in mine), f"cards of {name} are ready"
        )


class Kubelet:
    """Has a device plugin find the cards of each pod when it comes to the node. The pods then wait for their images."""

    def __init__(self, cluster: Cluster, plugin: HamiPlugin | VolcanoPlugin) -> None:
        self._cluster = cluster
        self._plugin = plugin
        self.given: dict[str, list[str]] = {}  # pod name -> UUIDs of its cards, by the plugin

    def admit(self) -> None:
        """Take up the pods that have come."""
        for name, found in self._cluster.pods().items():
            if found["spec"].get("nodeName") and name not in self.given:
                self.given[name] = []
                for container in found["spec"]["containers"]:
                    limits = container["resources"].get("limits") or {}
                    number = int(limits.get(COUNT) or limits.get(VGPU) or 0)
                    if number:
                        self.given[name] += self._plugin.allocate(number)

    def run(self, names: list[str]) -> None:
        """Go on until all these pods have come."""

        def all_here() -> bool:
            self.admit()
            return set(names) <= set(self.given)

        self._cluster.wait(all_here, f"{len(names)} pods have been given their cards", BURST_DEADLINE_S)


@pytest.mark.promise("vGPU guide")
@pytest.mark.parametrize(("dialect", "count", "memory"), [("hami", COUNT, MEMORY), ("volcano", VGPU, VGPU_MEMORY)])
def test_many_equal_pods_on_one_node_each_get_their_own_cards(
    cluster: Cluster, dialect: str, count: str, memory: str
) -> None:
    """Equal pods on eight cards: one that is mistaken for another would get a card that the ledger gave to that."""
    add_node(cluster, "node-a", dialect)
    kubelet = Kubelet(cluster, PLUGINS[dialect](Plugged(cluster), "node-a"))
    names = [f"equal-{number:02d}" for number in range(EQUAL_PODS)]
    cluster.create(*(pod(name, {count: 1, memory: 3000}) for name in reversed(names)))
    kubelet.run(names)
    found = cluster.pods()
    assert {name: kubelet.given[name] for name in names} == {name: uuids(found[name]) for name in names}
    assert cluster.metric("gpuledger_plugin_late_total") == 0
    cluster.check_consistent()


def test_pods_with_other_numbers_do_not_wait_at_volcanos_plugin(cluster: Cluster) -> None:
    """Nobody plays the plugin: the first is never found, and the others are bound all the same."""
    add_node(cluster, "node-a", "volcano")
    for cards in (1, 2, 3):
        cluster.create(pod(f"asks-{cards}", {VGPU: cards, VGPU_MEMORY: 1000}))
    found = cluster.wait_bound("asks-1", "asks-2", "asks-3", timeout_s=PLUGIN_TIMEOUT_S - 1)
    assert [annotations(each)["volcano.sh/bind-phase"] for each in found] == ["allocating"] * 3


def test_a_plugin_that_never_answers_blocks_nobody_for_longer_than_stated(cluster: Cluster) -> None:
    add_node(cluster, "node-a", "hami")
    late = cluster.metric("gpuledger_plugin_late_total")
    cluster.create(pod("first", {COUNT: 1, MEMORY: 1000}))
    cluster.wait_bound("first")
    bound = time.monotonic()
    cluster.create(pod("second", {COUNT: 1, MEMORY: 1000}))
    cluster.wait_bound("second")
    assert PLUGIN_TIMEOUT_S - 2 < time.monotonic() - bound < PLUGIN_TIMEOUT_S + 12
    assert cluster.metric("gpuledger_plugin_late_total") == late + 1
    assert annotations(cluster.request("GET", f"{NODES}/node-a"))["hami.io/mutex.lock"].endswith(",default,second")


GUIDE_VGPU = """
apiVersion: v1
kind: Pod
metadata:
  name: test-vgpu
spec:
  schedulerName: volcano
  tolerations:
    - {key: volcano.sh/vgpu, operator: Exists, effect: NoSchedule}
    - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  containers:
    - name: cuda-container
      image: nvidia/cuda:12.2.0-base-ubuntu22.04
      command: [sleep]
      args: ["100000"]
      resources:
        requests: {volcano.sh/vgpu-number: 2, volcano.sh/vgpu-memory: 3000, volcano.sh/vgpu-cores: 50}
        limits: {volcano.sh/vgpu-number: 2, volcano.sh/vgpu-memory: 3000, volcano.sh/vgpu-cores: 50}
"""

GUIDE_COMPATIBLE = """
apiVersion: v1
kind: Pod
metadata:
  name: test-vgpu-compatible
spec:
  schedulerName: volcano
  tolerations:
    - {key: volcano.sh/vgpu, operator: Exists, effect: NoSchedule}
  containers:
    - name: cuda-container
      image: nvidia/cuda:12.2.0-base-ubuntu22.04
      command: [sleep]
      args: ["100000"]
      resources:
        requests: {nvidia.com/gpu: 2}
        limits: {nvidia.com/gpu: 2}
"""


@pytest.mark.promise("vGPU guide")
def test_the_guides_pods_are_placed_as_they_are(cluster: Cluster) -> None:
    add_node(cluster, "vgpu", "volcano")
    add_node(cluster, "whole", "hami")
    cluster.create(yaml.safe_load(GUIDE_VGPU), yaml.safe_load(GUIDE_COMPATIBLE))
    shared, whole = cluster.wait_bound("test-vgpu", "test-vgpu-compatible")
    (cards,) = devices(shared).values()
    assert [(card["memoryMiB"], card["cores"]) for card in cards] == [(3000, 50), (3000, 50)]
    assert annotations(shared)["volcano.sh/vgpu-ids-new"] == "".join(
        f"{uuid},NVIDIA,3000,50:" for uuid in uuids(shared)
    )
    (cards,) = devices(whole).values()
    assert [(card["memoryMiB"], card["cores"]) for card in cards] == [(CARD_MIB, 100), (CARD_MIB, 100)]
    assert (shared["spec"]["nodeName"], whole["spec"]["nodeName"]) == ("vgpu", "whole")


def test_inspect_shows_nodes_and_pods_of_the_cluster(cluster: Cluster) -> None:
    add_node(cluster, "vgpu", "volcano", cards=2)
    cluster.create(yaml.safe_load(GUIDE_VGPU))
    done = command(cluster, "inspect", "node/vgpu", "pod/test-vgpu")
    assert done.returncode == 0, done.stderr
    node, found = json.loads(done.stdout)["items"]
    assert (node["dialect"], [gpu["memoryMiB"] for gpu in node["gpus"]]) == ("volcano", [CARD_MIB] * 2)
    request = found["containers"][0]["request"]
    assert (request["gpus"], request["memoryMiB"], request["cores"]) == (2, 3000, 50)


def test_a_pod_is_not_sent_where_the_plugin_serves_another_name(cluster: Cluster) -> None:
    """There the kubelet would not ask the plugin, or refuse the pod: the guide's UnexpectedAdmissionError."""
    add_node(cluster, "vgpu", "volcano")
    cluster.create(pod("by-hamis-name", {COUNT: 1}))
    cluster.wait_refused("by-hamis-name", f"the node's device plugin does not serve {COUNT}")


def test_a_node_that_offers_another_name_than_the_settings_say_is_told_so(cluster: Cluster) -> None:
    add_node(cluster, "vgpu", "volcano")
    cluster.set_slots("vgpu", 0, VGPU)
    cluster.set_slots("vgpu", 80, COUNT)
    cluster.wait(
        lambda: any(COUNT in text and VGPU in text for text in cluster.messages("vgpu", "Node")), "the node is told"
    )


def test_classic_nodes_have_no_inventory_and_get_no_pods(cluster: Cluster) -> None:
    add_node(cluster, "classic", "classic")
    cluster.create(pod("old-words", {"volcano.sh/gpu-number": 1}))
    cluster.wait_refused("old-words", "no GPUs in the ledger")
    cluster.wait(
        lambda: any("lists no UUIDs" in text for text in cluster.messages("classic", "Node")), "the node is told"
    )


def old_pod(cluster: Cluster, name: str, node_name: str, limits: dict[str, int], told: dict[str, str]) -> None:
    """Create a pod as another scheduler has bound it; it runs."""
    body = pod(name, limits)
    body["spec"] |= {"schedulerName": "volcano", "nodeName": node_name}
    body["metadata"]["annotations"] = told
    cluster.create(body)
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    cluster.patch(f"{PODS}/{name}/status", {"status": status})


def test_pods_of_the_old_device_plugin_keep_their_cards_when_it_is_replaced(cluster: Cluster) -> None:
    """The case of the 200-node report: two cards held by old pods, the plugin swapped, two more pods, no conflict."""
    cluster.request("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "swapped"}})
    for number in (0, 1):
        told = {"volcano.sh/gpu-index": str(number)}
        old_pod(cluster, f"old-{number}", "swapped", {"volcano.sh/gpu-number": 1}, told)
    cluster.request("DELETE", f"{NODES}/swapped")
    add_node(cluster, "swapped", "volcano", cards=4)
    cluster.set_slots("swapped", 0, "volcano.sh/gpu-number")  # what a kubelet leaves of a plugin that is gone
    cluster.wait(lambda: holder_names(cluster, "swapped", 0, 1) == [["old-0"], ["old-1"]], "the old pods are adopted")
    kubelet = Kubelet(cluster, VolcanoPlugin(Plugged(cluster), "swapped"))
    kubelet.given = {"old-0": [], "old-1": []}
    cluster.create(*(pod(f"new-{number}", {VGPU: 1}) for number in (0, 1)))
    kubelet.run(["new-0", "new-1"])
    given = [uuid for name in ("new-0", "new-1") for uuid in kubelet.given[name]]
    assert sorted(given) == ["GPU-swapped-2", "GPU-swapped-3"]
    cluster.delete("old-0", "old-1")
    cluster.create(*(pod(f"again-{number}", {VGPU: 1}) for number in (0, 1)))
    kubelet.run(["again-0", "again-1"])
    assert len({uuid for cards in kubelet.given.values() for uuid in cards}) == 4


def test_pods_that_hami_and_volcano_have_placed_are_adopted(cluster: Cluster) -> None:
    add_node(cluster, "of-hami", "hami", cards=2)
    add_node(cluster, "of-volcano", "volcano", cards=2)
    hami = {"hami.io/vgpu-devices-allocated": "GPU-of-hami-1,NVIDIA,5000,30:;"}
    volcano = {"volcano.sh/vgpu-ids-new": "GPU-of-volcano-0,NVIDIA,6000,0:"}
    old_pod(cluster, "hamis", "of-hami", {COUNT: 1, MEMORY: 5000}, hami)
    old_pod(cluster, "volcanos", "of-volcano", {VGPU: 1, VGPU_MEMORY: 6000}, volcano)
    cluster.wait(
        lambda: (
            holder_names(cluster, "of-hami", 1) + holder_names(cluster, "of-volcano", 0) == [["hamis"], ["volcanos"]]
        ),
        "both are adopted",
    )
    used = cluster.cards()["GPU-of-hami-1"]["status"]["used"]
    assert (used["memoryMiB"], used["cores"], used["number"]) == (5000, 30, 1)


def test_migrate_shows_first_and_then_does_what_it_has_shown(cluster: Cluster) -> None:
    """Here the operator does not adopt by itself: it is stopped while the pods come, and the command runs alone."""
    add_node(cluster, "of-hami", "hami", cards=2)
    cluster.installation.kill_operator()
    told = {"hami.io/vgpu-devices-allocated": "GPU-of-hami-0,NVIDIA,20000,30:;"}
    for name in ("first", "second"):
        old_pod(cluster, name, "of-hami", {COUNT: 1, MEMORY: 20000}, told)
    try:
        shown = migrate(cluster, "--dry-run")
        no_room = "the card has no room for the pod: it would be listed as a conflict"
        assert [step["conflict"] for step in shown] == ["", no_room]
        assert holder_names(cluster, "of-hami", 0) == [[]]
        assert migrate(cluster) == shown
        assert holder_names(cluster, "of-hami", 0) == [["first"]]
        assert [step["pod"] for step in migrate(cluster)] == ["default/second"]
    finally:
        cluster.installation.start_operator()


def migrate(cluster: Cluster, *options: str) -> list[Json]:
    """Run the command as an administrator; something always needs a person here."""
    done = command(cluster, "migrate", *options)
    assert done.returncode == 1, done.stderr
    return list(json.loads(done.stdout))


def holder_names(cluster: Cluster, node_name: str, *indexes: int) -> list[list[str]]:
    held = cluster.holders()
    return [[holder["pod"] for holder in held.get(f"GPU-{node_name}-{index}", [])] for index in indexes]


MLU, MLU_MEMORY, MLU_CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"


def mlus(cards: int) -> dict[str, str]:
    """Return what a node says of Cambricon's cards, of 16 GiB each: it lists them nowhere else."""
    return {MLU_CORES: str(100 * cards), MLU_MEMORY: str(64 * cards)}


def set_mlus(cluster: Cluster, name: str, cards: int) -> None:
    """Let a node say that it has another number of them."""
    status = {"capacity": mlus(cards), "allocatable": mlus(cards)}
    cluster.patch(f"{NODES}/{name}/status", {"status": status})


def test_cards_of_which_a_node_tells_only_its_capacity_are_allocations_and_shared(cluster: Cluster) -> None:
    """Cambricon's plugin is told in its own annotations, and says in one of them that it has found the pod."""
    cluster.create_node("mlu", {"cpu": 128, "memory": "1Ti", "pods": 250, **mlus(2)})
    mine = ["mlu-cambricon-mlu-0", "mlu-cambricon-mlu-1"]
    cluster.wait(
        lambda: [phase(cluster.cards().get(uuid, {})) for uuid in mine] == ["Ready"] * 2, "its cards are Ready"
    )
    spec = cluster.cards()[mine[0]]["spec"]
    assert (spec["vendor"], spec["capacity"]) == ("cambricon", {"memoryMiB": 16_384, "cores": 100, "number": 100})

    late = cluster.metric("gpuledger_plugin_late_total")
    for name, limits in {"share": {MLU: 1, MLU_MEMORY: 20, MLU_CORES: 10}, "whole": {MLU: 1}}.items():
        cluster.create(pod(name, limits))
        [found] = cluster.wait_bound(name)
        [uuid] = uuids(found)
        memory, cores = (20, 10) if name == "share" else (64, 100)
        said = annotations(found)
        assert said["CAMBRICON_DSMLU_PROFILE"] == f"{uuid[-1]}_{cores}_{memory}"
        assert said["hami.io/cambricon-mlu-devices-allocated"] == f"{uuid},MLU,{memory * 256},{cores}:;"
        assert said["CAMBRICON_DSMLU_ASSIGNED"] == "false"
        cluster.patch(f"{PODS}/{name}", {"metadata": {"annotations": {"CAMBRICON_DSMLU_ASSIGNED": "true"}}})
    assert cluster.metric("gpuledger_plugin_late_total") == late
    cluster.create(pod("another", {MLU: 1}))
    cluster.wait_refused("another", "entirely free")
    cluster.check_consistent()

    set_mlus(cluster, "mlu", 0)
    cluster.wait(
        lambda: [phase(card) for card in cluster.cards().values()] == ["Unavailable"] * 2, "its cards are closed"
    )
    assert sorted(map(len, cluster.holders().values())) == [1, 1]
    set_mlus(cluster, "mlu", 2)
    cluster.wait(
        lambda: [phase(card) for card in cluster.cards().values()] == ["Ready"] * 2, "its cards are open again"
    )
