"""Every container gets exactly the cards that the ledger gave it, on a real kubelet and container runtime."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from cluster.cluster import COUNT, MEMORY, PODS, devices, uuids
from effort import times
from gpuledger.formats.quantity import whole_number
from node.gpu_node import MIRRORED_CDI, GpuNode, gpu_container, gpu_pod, one_card

SIZES = [
    {COUNT: 1, MEMORY: 2000},
    {COUNT: 1, MEMORY: 3000, "nvidia.com/gpucores": 10},
    {COUNT: 2, MEMORY: 1000},
    {COUNT: 1, "nvidia.com/gpumem-percentage": 5},
    {COUNT: 1, MEMORY: 1500, "nvidia.com/gpucores": 5},
]


@pytest.mark.promise("containers")
def test_twenty_pods_of_mixed_sizes_created_at_once_get_what_the_ledger_says(gpu: GpuNode) -> None:
    names = gpu.create(*(gpu_pod(f"mixed-{n}", SIZES[n % len(SIZES)]) for n in range(20)))
    gpu.wait_running(*names)
    gpu.check(*names)
    kept, gone = names[::2], names[1::2]
    before = gpu.identities(*kept)
    gpu.remove(*gone)
    again = gpu.create(*(gpu_pod(f"again-{n}", SIZES[(n + 2) % len(SIZES)]) for n in range(len(gone))))
    gpu.wait_running(*again)
    gpu.check(*kept, *again)
    assert gpu.identities(*kept) == before


def test_equal_pods_at_once_are_not_swapped_and_take_less_than_a_second_and_three_times_what_pods_without_gpus_take(
    gpu: GpuNode, say: Callable[[str], None]
) -> None:
    """Whole cards, so that each pod has a card of its own, and a mistake would show."""
    for run in range(2):
        names = gpu.create(*(gpu_pod(f"equal-{run}-{n}", {COUNT: 1}) for n in range(len(gpu.state.cards))))
        gpu.wait_running(*names)
        gpu.check(*names)
        pods = gpu.cluster.pods()
        assert sorted(uuid for name in names for uuid in uuids(pods[name])) == sorted(c.uuid for c in gpu.state.cards)
        gpu.remove(*names)
    equal = gpu.create(*(gpu_pod(f"share-{n}", one_card()) for n in range(12)))
    gpu.wait_running(*equal)
    gpu.check(*equal)
    plain = gpu.create(*(gpu_pod(f"plain-{n}", {}, schedulerName="default-scheduler") for n in range(12)))
    gpu.wait_running(*plain)
    bound = gpu.bound_at_s()
    took = {name: gpu.started_at_s(name) - bound[name] for name in (*equal, *plain)}
    with_gpu, without = (statistics.median(took[name] for name in names) for names in (equal, plain))
    say(
        f"12 equal pods at once, from Binding to the container's first process: {with_gpu:.2f} s in the middle; "
        f"12 pods without GPUs: {without:.2f} s; ratio {with_gpu / without:.2f}"
    )
    assert with_gpu < 3 * without + 1


@pytest.mark.promise("containers")
def test_several_containers_of_a_pod_get_each_its_own(gpu: GpuNode) -> None:
    main = gpu_container("main", {COUNT: 2, MEMORY: 1000})
    side = gpu_container("side", one_card(3000, gpucores=20))
    names = gpu.create(gpu_pod("several", main, side), gpu_pod("several-too", side, main))
    gpu.wait_running(*names)
    gpu.check(*names)
    assert all(set(devices(gpu.cluster.pod(name))) == {"main", "side"} for name in names)


def test_a_pod_with_sums_starts_though_its_node_lists_no_such_resources(gpu: GpuNode) -> None:
    """As admission writes them (docs/sum-resources.md): the kubelet takes off what its node does not have."""
    sums = {"gpuledger.dev/memory-mib": 2000, "gpuledger.dev/cores": 40, "gpuledger.dev/gpus": 2}
    (name,) = gpu.create(gpu_pod("summed", {COUNT: 2, MEMORY: 1000, "nvidia.com/gpucores": 20, **sums}))
    gpu.wait_running(name)
    gpu.check(name)
    (node,) = gpu.cluster.request("GET", "/api/v1/nodes")["items"]
    assert not sums.keys() & node["status"]["allocatable"].keys()


def test_init_containers_sidecars_and_those_that_reuse_their_slots_get_each_their_own(gpu: GpuNode) -> None:
    """The kubelet gives the slots of ordinary init containers to the others again, and never lists them."""
    show = 'echo "$GPULEDGER_UUIDS $GPULEDGER_MEMORY_MIB"'
    first = gpu_container("first", one_card(5000), show)
    second = gpu_container("second", {COUNT: 2, MEMORY: 2500}, show)
    sidecar = gpu_container("sidecar", one_card(700), restartPolicy="Always")
    pods = [
        gpu_pod(f"init-{n}", gpu_container("main", one_card(1000 + n)), initContainers=[first, sidecar, second])
        for n in range(3)
    ]
    only = gpu_pod("init-only", gpu_container("main", {}), initContainers=[first])
    names = gpu.create(*pods, only)
    gpu.wait_running(*names)
    found = gpu.cluster.pods()
    for name in names:
        told = devices(found[name])
        assert set(told) == ({"first"} if name == "init-only" else {"first", "second", "sidecar", "main"})
        for container, cards in told.items():
            expected = f"{','.join(c['uuid'] for c in cards)} {','.join(str(c['memoryMiB']) for c in cards)}"
            if container in ("first", "second"):
                assert gpu.node.container_log("default", name, container).split("\n")[0] == expected
            else:
                assert gpu.told(name, container) == [(c["uuid"], c["memoryMiB"], c["cores"]) for c in cards]


@pytest.mark.promise("containers")
def test_a_pod_created_anew_under_its_name_gets_its_own_share(gpu: GpuNode) -> None:
    for memory_mib in (1000, 2000, 3000):
        gpu.create(gpu_pod("phoenix", one_card(memory_mib)))
        gpu.wait_running("phoenix")
        gpu.check("phoenix")
        assert [memory for _, memory, _ in gpu.told("phoenix")] == [memory_mib]
        gpu.remove("phoenix")


@pytest.mark.promise("containers")
def test_a_container_that_restarts_in_place_gets_the_same_again(gpu: GpuNode) -> None:
    gpu.create(gpu_pod("restarts", one_card()))
    gpu.wait_running("restarts")
    before = gpu.told("restarts")
    gpu.restart("restarts")
    assert gpu.told("restarts") == before
    gpu.check("restarts")


def test_an_annotation_edited_after_binding_changes_nothing_of_what_a_container_gets(gpu: GpuNode) -> None:
    gpu.create(gpu_pod("neighbour", {COUNT: 1}))
    gpu.wait_running("neighbour")
    forged = json.dumps({"main": [{"uuid": gpu.told("neighbour")[0][0], "memoryMiB": 80000, "cores": 100}]})
    texts = {"forger": forged, "without": "{}", "unreadable": "nonsense", "removed": None}
    gpu.create(*(gpu_pod(name, one_card(1000)) for name in texts))
    gpu.wait_running(*texts)
    before = {name: gpu.told(name) for name in texts}
    for name, text in texts.items():
        gpu.cluster.patch(f"{PODS}/{name}", {"metadata": {"annotations": {"gpuledger.dev/devices": text}}})
        gpu.restart(name)
    assert {name: gpu.told(name) for name in texts} == before


def test_a_pod_that_came_around_the_scheduler_is_refused_and_hurts_nobody(gpu: GpuNode) -> None:
    gpu.create(gpu_pod("rogue", {COUNT: 2}, schedulerName="", nodeName=gpu.node.name))
    names = gpu.create(*(gpu_pod(f"honest-{n}", one_card()) for n in range(4)))
    gpu.wait_running(*names)
    gpu.check(*names)
    gpu.cluster.wait(
        lambda: any("was not placed by gpuledger's scheduler" in text for text in gpu.cluster.messages("rogue")),
        "the rogue's events say what to do",
    )
    assert "rogue" not in gpu.holding()
    assert not any("running" in s["state"] for s in gpu.cluster.pod("rogue")["status"]["containerStatuses"])


def test_a_pod_deleted_before_its_container_starts_leaves_nothing(gpu: GpuNode) -> None:
    for n in range(8):
        gpu.create(gpu_pod(f"short-{n}", one_card()))
        gpu.cluster.wait_bound(f"short-{n}")
        gpu.cluster.request("DELETE", f"{PODS}/short-{n}")
    gpu.create(gpu_pod("after", {COUNT: 4, MEMORY: 1000}))
    gpu.wait_running("after")
    gpu.check("after")
    gpu.cluster.wait(lambda: gpu.holding() == {"after"}, "only the last pod holds shares")


def test_a_slot_used_again_and_again_never_has_its_last_owners_cards_when_the_runtime_lags_behind(
    lagging: GpuNode,
) -> None:
    """The runtime sees each file only some time after the agent wrote it: its watcher lags behind.

    A pod that was refused keeps all slots but one, so the kubelet has no choice; each pod gets another card.
    """
    gpu = lagging
    all_slots = 10 * len(gpu.state.cards)
    gpu.create(gpu_pod("keeps-slots", {COUNT: all_slots - 1}, schedulerName="", nodeName=gpu.node.name))
    gpu.cluster.wait(
        lambda: any("not placed by" in text for text in gpu.cluster.messages("keeps-slots")), "it was refused"
    )
    names, slots = set(), set()
    for n in range(REUSES):
        name, card = f"reuse-{n}", gpu.state.cards[n % len(gpu.state.cards)].uuid
        show = gpu_container("main", one_card(1000 + n), 'echo "$GPULEDGER_UUIDS $GPULEDGER_MEMORY_MIB"')
        gpu.create(gpu_pod(name, show, annotations={"nvidia.com/use-gpuuuid": card}, restartPolicy="Never"))
        gpu.cluster.wait(lambda name=name: gpu.phase(name) == "Succeeded", f"{name} has ended")  # type: ignore[misc]
        assert gpu.node.container_log("default", name, "main") == f"{card} {1000 + n}\n"
        for file in gpu.grant_files(MIRRORED_CDI).values():
            names.add(file["devices"][0]["name"])
            slots.add(file["devices"][0]["annotations"]["gpuledger.dev/slots"])
    assert len(names) == REUSES, "each had a name of its own"
    assert len(slots) == 1, "all had the same slot"


DELAYS_S = (0.0, 0.02, 0.05, 0.1, 0.5)
"""How late the runtime sees a change, one after the other: from before it looks to long after it has given up."""

REUSES = times(1, 4) * len(DELAYS_S)
"""How often a slot is used again: each takes about 5 s, most of it the kubelet's."""


class Mirror:
    """Shows the runtime the agent's files late: a copy of the directory, some time after each change."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        shown: set[str] = set()
        delays_s = itertools.cycle(DELAYS_S)
        while not self._ended.wait(0.01):
            files = {}
            for file in self._source.glob("*.json"):
                with contextlib.suppress(FileNotFoundError):  # it goes at this moment
                    files[file.name] = file.read_bytes()
            if files.keys() == shown:
                continue
            if files.keys() - shown:
                self._ended.wait(next(delays_s))
            for name in shown - files.keys():
                (self._target / name).unlink()
            for name in files.keys() - shown:
                (self._target / f"{name}.new").write_bytes(files[name])
                (self._target / f"{name}.new").rename(self._target / name)
            shown = set(files)


@pytest.fixture
def lagging(gpu: GpuNode) -> Iterator[GpuNode]:
    """Yield the node with an agent whose files the runtime sees later."""
    gpu.kill_agent()
    directory = gpu.node.path("/var/run") / "gpuledger-cdi"
    directory.mkdir(exist_ok=True)
    gpu.change_settings(cdi_directory=MIRRORED_CDI)
    mirror = Mirror(directory, gpu.node.path("/var/run/cdi"))
    try:
        gpu.start_agent()
        gpu.wait_ready()
        yield gpu
    finally:
        gpu.remove_all()
        mirror.end()
        gpu.kill_agent()
        gpu.change_settings(cdi_directory="/var/run/cdi")
        gpu.start_agent()
        gpu.wait_ready()


def test_without_cdi_a_container_finds_its_share_in_a_read_only_directory(gpu: GpuNode) -> None:
    gpu.kill_agent()
    gpu.change_settings(delivery="directory")
    try:
        gpu.start_agent()
        gpu.wait_ready()
        script = "cat /run/gpuledger/devices.json; echo; touch /run/gpuledger/x && echo writable; exec sleep 3600"
        names = gpu.create(
            *(gpu_pod(f"files-{n}", gpu_container("main", one_card(1000 + n), script)) for n in range(6))
        )
        gpu.wait_running(*names)
        for name in names:
            lines = gpu.node.container_log("default", name, "main").splitlines()
            (devices_file,) = (line for line in lines if line.startswith("["))
            found = [(card["uuid"], card["memoryMiB"], card["cores"]) for card in json.loads(devices_file)]
            assert found == gpu.entered(gpu.cluster.pod(name))
            assert "writable" not in lines
        gpu.remove_all()
    finally:
        gpu.kill_agent()
        gpu.change_settings(delivery="cdi")
        gpu.start_agent()
        gpu.wait_ready()


WORDS = {"volcano.sh/vgpu-number", "volcano.sh/gpu-number", "koordinator.sh/gpu.shared"}
AMOUNTS = ("volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores")
MAY_SHOW = (  # as docs/settings.md has it
    "create clusterrole gpuledger-agent-capacity --verb=patch --resource=nodes/status",
    "create clusterrolebinding gpuledger-agent-capacity --clusterrole=gpuledger-agent-capacity "
    "--serviceaccount=gpuledger-system:gpuledger-agent",
)


def capacity(gpu: GpuNode) -> dict[str, int]:
    """Return what the node shows of GPUs: resource -> amount. The kubelet leaves 0 of names that are served no more."""
    found = gpu.cluster.request("GET", f"/api/v1/nodes/{gpu.node.name}")["status"]["capacity"]
    return {name: whole_number(amount) for name, amount in found.items() if "/" in name and whole_number(amount)}


def test_the_same_slots_are_shown_under_one_name(gpu: GpuNode) -> None:
    slots = 10 * len(gpu.state.cards)
    assert capacity(gpu) == {COUNT: slots}


def apply_policy(gpu: GpuNode) -> None:
    """Apply the policy on agents that goes with the settings, as docs/settings.md has it."""
    settings = gpu.installation.settings_file
    argv = [sys.executable, "-m", "gpuledger", "admission-policies", "--kind", "agents", "--settings", str(settings)]
    policy = gpu.plane.directory / "agents-policy.yaml"
    policy.write_text(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    gpu.plane.kubectl("apply", "-f", str(policy))


@pytest.fixture
def in_all_words(gpu: GpuNode) -> Iterator[GpuNode]:
    """Yield the node with an agent that serves and shows what Volcano's and Koordinator's users look for."""
    for words in MAY_SHOW:
        gpu.plane.kubectl(*words.split())
    gpu.kill_agent()
    gpu.change_settings(agent_also_serves=["volcano", "volcano-classic", "koordinator"], volcano_capacity=True)
    apply_policy(gpu)
    gpu.start_agent()
    gpu.wait_ready()
    gpu.cluster.wait(lambda: capacity(gpu).keys() >= WORDS, "all names are served")
    yield gpu
    gpu.kill_agent()
    gpu.change_settings(agent_also_serves=[], volcano_capacity=False)
    apply_policy(gpu)
    gpu.cluster.patch(f"/api/v1/nodes/{gpu.node.name}/status", {"status": {"capacity": dict.fromkeys(AMOUNTS)}})
    gpu.start_agent()
    gpu.wait_ready()


def test_where_the_settings_ask_for_it_pods_are_served_in_all_words_and_the_node_shows_what_there_is(
    in_all_words: GpuNode,
) -> None:
    gpu = in_all_words
    cards = [card["spec"]["capacity"] for card in gpu.cluster.cards().values()]
    shown = {AMOUNTS[0]: sum(card["memoryMiB"] for card in cards), AMOUNTS[1]: sum(card["cores"] for card in cards)}

    def as_it_should() -> bool:
        return {name: amount for name, amount in capacity(gpu).items() if name in AMOUNTS} == shown

    gpu.cluster.wait(as_it_should, f"the node shows {shown}")
    zero = dict.fromkeys(AMOUNTS, "0")  # as a kubelet does where the Node is created anew
    gpu.cluster.patch(f"/api/v1/nodes/{gpu.node.name}/status", {"status": {"capacity": zero, "allocatable": zero}})
    gpu.cluster.wait(as_it_should, f"the node shows {shown} again")
    most = max(card["memoryMiB"] for card in cards)
    gpu.create(  # together, all that is shown, and more of what is per card and not per pod
        gpu_pod("whole", {"volcano.sh/vgpu-number": len(cards) - 1, AMOUNTS[0]: most - 5000, AMOUNTS[1]: 60}),
        gpu_pod("volcano", {"volcano.sh/vgpu-number": len(cards), AMOUNTS[0]: 2000, AMOUNTS[1]: 10}),
        gpu_pod("classic", {"volcano.sh/gpu-memory": 1000, "volcano.sh/gpu-number": 1}),
        gpu_pod("koordinator", {"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory": "2Gi"}),
    )
    names = ("whole", "volcano", "classic", "koordinator")
    gpu.wait_running(*names)
    gpu.check(*names)
