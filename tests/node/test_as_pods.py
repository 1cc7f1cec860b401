"""The whole product as pods on two real nodes: operator, kube-scheduler and agents, by kustomize, then by Helm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pytest

from build_control_plane import ensure_binaries
from build_steps import BuildError
from cluster.cluster import PODS, RequestFailed, devices
from cluster.kubernetes import needs_filling_in
from control_plane import ControlPlaneError
from fakes.nvml import fake_nvml
from fakes.nvml.fake_nvml import Process
from gpuledger.model.node_config import NodeConfig
from installation import NAMESPACE, REPOSITORY
from manifests.helm import the_helm
from node.agent_pod import Watch
from node.gpu_node import gpu_pod, one_card
from node.helm_release import HelmRelease
from node.pod_cluster import CARDS_PER_NODE, NODES, PodCluster, previous_release, require_pods

Json = dict[str, Any]
Say = Callable[[str], None]

pytestmark = pytest.mark.timeout(900)
STREAM_PAUSE_S = 0.4
LEASE_S = 15.0
"""After this time kube-scheduler's Lease runs out. A replica that is asked to end gives it back before."""
RUN_S = 330.0
"""The kubelet's longest pause between two tries to start a container is five minutes."""

SLOTS = len(NODES) * CARDS_PER_NODE * NodeConfig().split_count
AGENT = "gpuledger-agent"
SECURITY = REPOSITORY / "docs" / "security.md"


@pytest.fixture(scope="module")
def installed() -> Iterator[tuple[PodCluster, str]]:
    """Yield the cluster with gpuledger on it, and how long all of that took."""
    require_pods()
    fake_nvml.library_directory()  # is built, or the tests are skipped
    watch = Watch()
    with contextlib.ExitStack() as stack:
        try:
            cluster = stack.enter_context(PodCluster.running())
            cluster.bring_images()
        except (ControlPlaneError, BuildError) as error:
            pytest.fail(f"The cluster does not start.\n{error}", pytrace=False)
        cluster.install()
        cluster.wait_installed()
        yield cluster, str(watch)


@pytest.fixture
def cluster(installed: tuple[PodCluster, str]) -> Iterator[PodCluster]:
    """Yield the cluster; the test's pods are gone afterwards."""
    found, _ = installed
    yield found
    remove_all(found)


def a_pod(name: str, memory_mib: int = 1000, **more: int) -> Json:
    return gpu_pod(name, one_card(memory_mib, **more), hostNetwork=False)


def remove_all(cluster: PodCluster) -> None:
    """Delete all pods and wait until they have let go of their cards."""
    cluster.request("DELETE", f"{PODS}?gracePeriodSeconds=1")
    cluster.wait(lambda: not cluster.pods() and not any(cluster.holders().values()), "no pods and no holders are left")


def check(cluster: PodCluster, *names: str) -> None:
    """Compare what containers were told with the ledger, and the ledger with the pods' annotations."""
    for name in names:
        assert cluster.told(name) == cluster.entered(name) != []
    cluster.check_consistent()


class Stream:
    """Pods that are created one after the other, as long as the `with` lasts.

    Slots are not used up, however long that is: once half of them are taken, the pauses grow as the rest gets less.
    """

    def __init__(self, cluster: PodCluster, prefix: str) -> None:
        self.created: dict[str, datetime] = {}
        self._cluster, self._prefix, self._ended = cluster, prefix, threading.Event()
        self._offset = cluster.plane.audit_offset()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(PodCluster(self._cluster.plane, self._cluster.nodes)) as cluster:
            while not self._ended.wait(self._pause_s()):
                name, now = f"{self._prefix}-{len(self.created)}", datetime.now(UTC)
                cluster.create(a_pod(name))
                self.created[name] = now

    def _pause_s(self) -> float:
        left = max(SLOTS - len(self.created), 0.5)
        return STREAM_PAUSE_S * max(1.0, SLOTS / 2 / left)

    def wait_for(self, count: int) -> None:
        """Wait until so many more pods were created."""
        wanted = len(self.created) + count
        self._cluster.wait(
            lambda: len(self.created) >= wanted, f"{count} more pods are created", count * 2 * self._pause_s() + 60
        )

    def longest_wait_s(self) -> float:
        """Return how long a pod has waited for its Binding at most, by the API server's audit log."""
        events = self._cluster.plane.audit_events(self._offset)
        bound = {e.name: e.timestamp for e in events if e.subresource == "binding" and e.code < 300}
        return max((bound[name] - created).total_seconds() for name, created in self.created.items())


def all_placed_soon_and_once(cluster: PodCluster, stream: Stream, within_s: float = LEASE_S) -> str:
    """Check that no pod of a stream was lost or had to wait longer, and no card given twice; return what was seen."""
    names = list(stream.created)
    pods = cluster.wait_bound(*names)
    assert all(len(devices(pod)["main"]) == 1 for pod in pods)
    try:
        cluster.wait(lambda: cluster.runs(*names), "all of them run", timeout_s=RUN_S)
    except AssertionError as error:
        pods = [pod for name, pod in cluster.pods().items() if not cluster.runs(name)]
        late_ones = {pod["metadata"]["name"]: (pod["spec"].get("nodeName"), pod["status"]) for pod in pods}
        told = {name: cluster.messages(name) for name in late_ones}
        raise AssertionError(f"these do not: {json.dumps(late_ones, indent=1)}\n{told}\n{error}") from None
    check(cluster, *names)
    longest_s = stream.longest_wait_s()
    assert longest_s < within_s
    return f"{len(names)} pods, the slowest bound after {longest_s:.1f} s"


def test_from_nothing_to_pods_with_cards(installed: tuple[PodCluster, str], cluster: PodCluster, say: Say) -> None:
    watch = Watch()
    names = [f"pod-{n}" for n in range(2 * CARDS_PER_NODE)]
    cluster.create(*(a_pod(name, 60_000, gpucores=10 + n) for n, name in enumerate(names)))
    cluster.wait(lambda: cluster.runs(*names), f"{names} run", timeout_s=120)
    say(
        f"control plane, two nodes, images, operator, scheduler and agents as pods: {installed[1]}; 8 GPU pods: {watch}"
    )
    check(cluster, *names)
    assert {pod["spec"]["nodeName"] for pod in cluster.pods().values()} == set(NODES)
    replicas = cluster.system_pods().values()
    assert {pod["spec"]["nodeName"] for pod in replicas} == set(NODES)  # they keep apart
    assert all(status["restartCount"] == 0 for pod in replicas for status in pod["status"]["containerStatuses"])


def plugin(cluster: PodCluster, *arguments: str) -> str:
    """Return what `kubectl gpuledger` says, with the kubectl of the cluster; it ends with 1 for a pod that waits."""
    path = os.pathsep.join([str(ensure_binaries()), str(Path(sys.executable).parent), os.environ["PATH"]])
    return cluster.plane.kubectl("gpuledger", *arguments, environment={"PATH": path}, check=False)


def test_one_asks_the_operators_pod_why_through_ones_own_kubectl(cluster: PodCluster) -> None:
    cluster.create(a_pod("first", 80_000), a_pod("waits", 90_000))
    cluster.wait_bound("first")
    cluster.wait_refused("waits", "no card as large as 90000 MiB")
    told = json.loads(plugin(cluster, "explain", "pod/waits", "-o", "json"))
    short = [card["short"] for node in told["nodes"] for card in node["cards"]]
    assert (told["pod"], short) == ("waits", [{"memoryMiB": 90_000 - 81_920}] * 2 * CARDS_PER_NODE)
    assert "8,080 MiB less than is asked for" in plugin(cluster, "explain", "pod/waits")
    assert "assigned" in plugin(cluster, "history", "pod/first")


def deleted(cluster: PodCluster, pod: str) -> None:
    """Delete a pod without giving it time."""
    cluster.plane.kubectl("delete", "pod", pod, "--namespace", NAMESPACE, "--force", "--grace-period=0")


def killed(cluster: PodCluster, pod: str) -> None:
    """Kill all processes of a pod's containers at once: the Lease stays with it."""
    found = cluster.system_pods()[pod]
    node = cluster.node_of(found)
    ids = [status["containerID"].removeprefix("containerd://") for status in found["status"]["containerStatuses"]]
    for pid in [pid for container in ids for pid in node.container_pids(container)]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("ended", [deleted, killed])
def test_the_active_replica_ends_and_another_takes_over(
    cluster: PodCluster, say: Say, ended: Callable[[PodCluster, str], None]
) -> None:
    """A pod whose processes were killed has new ones in a moment: these may be the next, as well as the other pod's."""
    before = cluster.holder()
    with Stream(cluster, ended.__name__) as stream:
        stream.wait_for(4)
        ended(cluster, cluster.active())
        cluster.wait(lambda: cluster.holder() != before, "another process is active")
        stream.wait_for(4)
    seen = all_placed_soon_and_once(cluster, stream, within_s=LEASE_S if ended is deleted else 2 * LEASE_S)
    say(f"the active replica was {ended.__name__}: {seen}")
    cluster.wait_installed()


def test_the_node_of_the_active_replica_is_drained(cluster: PodCluster, say: Say) -> None:
    active = cluster.active()
    node = cluster.system_pods()[active]["spec"]["nodeName"]
    with Stream(cluster, "drained") as stream:
        stream.wait_for(4)
        cluster.plane.kubectl(
            *(
                "drain",
                node,
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                "--pod-selector=app.kubernetes.io/name=gpuledger",
            ),
            timeout_s=120,
        )
        stream.wait_for(8)
    say(f"the active replica's node was drained: {all_placed_soon_and_once(cluster, stream)}")
    cluster.plane.kubectl("uncordon", node)
    cluster.wait_installed()


def test_a_changed_setting_rolls_the_replicas_under_load(cluster: PodCluster, say: Say) -> None:
    before = set(cluster.system_pods())
    with Stream(cluster, "rolled") as stream:
        stream.wait_for(4)
        cluster.change(node_policy="spread")
        cluster.wait_installed()
        stream.wait_for(4)
    assert not before & set(cluster.system_pods())
    say(f"a setting was changed: {all_placed_soon_and_once(cluster, stream)}")


# Pod Security.


def violations(cluster: PodCluster, template: Json) -> set[str]:
    """Return why Pod Security's level "restricted" refuses a pod, without details; empty if it does not."""
    spec = {key: value for key, value in template["spec"].items() if not key.startswith("serviceAccount")}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": spec}
    try:
        cluster.request("POST", "/api/v1/namespaces/restricted/pods?dryRun=All", body)
    except RequestFailed as refused:
        text = str(refused)
        assert 'violates PodSecurity "restricted' in text
        return {name.strip() for name in re.findall(r"(?:: |, )([A-Za-z !=]+(?:=0)?) \(", text)}
    return set()


def template_of(cluster: PodCluster, kind: str, name: str) -> Json:
    found = cluster.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}/{name}")
    return dict(found["spec"]["template"])


def test_the_operator_keeps_to_restricted_and_the_agents_exceptions_are_those_that_are_documented(
    cluster: PodCluster,
) -> None:
    metadata = {"name": "restricted", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    cluster.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    account = "/api/v1/namespaces/restricted/serviceaccounts/default"
    cluster.wait(lambda: exists(cluster, account), "the namespace has its account")
    assert violations(cluster, template_of(cluster, "deployments", "gpuledger")) == set()
    found = violations(cluster, template_of(cluster, "daemonsets", "gpuledger-agent"))
    table = SECURITY.read_text().split("| exception |")[1].split("\n\n")[0]
    assert found == set(re.findall(r"^\| ([^|`-]+) \|", table, re.MULTILINE))


def exists(cluster: PodCluster, path: str) -> bool:
    try:
        cluster.request("GET", path)
    except RequestFailed:
        return False
    return True


@pytest.fixture
def agents(cluster: PodCluster) -> Iterator[Callable[[Json], Json]]:
    """Yield what changes the DaemonSet and returns the first new pod; all is as before afterwards."""

    def change(patch: Json) -> Json:
        before = set(cluster.system_pods(AGENT))
        cluster.plane.kubectl(
            *("patch", "daemonset", AGENT, "--namespace", NAMESPACE, "--type=json", f"--patch={json.dumps([patch])}")
        )
        cluster.wait(lambda: bool(set(cluster.system_pods(AGENT)) - before), "an agent has been replaced")
        name = next(iter(set(cluster.system_pods(AGENT)) - before))
        return cluster.system_pods(AGENT)[name]

    yield change
    cluster.change()
    cluster.wait_installed()


def test_an_agent_that_is_not_root_reaches_neither_the_kubelet_nor_its_own_directories(
    cluster: PodCluster, agents: Callable[[Json], Json]
) -> None:
    pod = agents({"op": "replace", "path": "/spec/template/spec/securityContext/runAsUser", "value": 65532})
    name = pod["metadata"]["name"]

    def log() -> str:
        return cluster.plane.kubectl("logs", name, "--namespace", NAMESPACE, check=False)

    cluster.wait(lambda: "Permission denied" in log(), "the agent says what it may not do", timeout_s=120)


def test_an_agent_without_the_kubelets_directory_serves_nothing(
    cluster: PodCluster, agents: Callable[[Json], Json]
) -> None:
    volumes = template_of(cluster, "daemonsets", AGENT)["spec"]["volumes"]
    place = next(n for n, volume in enumerate(volumes) if volume["name"] == "device-plugins")
    empty = {"name": "device-plugins", "emptyDir": {}}
    pod = agents({"op": "replace", "path": f"/spec/template/spec/volumes/{place}", "value": empty})
    ask = "import http.client as h; c = h.HTTPConnection('127.0.0.1:8890'); c.request('GET', '/readyz'); "
    argv = ("python3", "-c", f"{ask}print(c.getresponse().read().decode())")

    def answer() -> str:
        try:
            return cluster.node_of(pod).container_execute(NAMESPACE, pod["metadata"]["name"], "agent", *argv)
        except ControlPlaneError as error:
            return str(error)

    cluster.wait(lambda: "the kubelet does not listen" in answer(), "the agent says why it is not ready", timeout_s=120)


def test_only_an_agent_that_sees_the_nodes_processes_knows_whose_they_are(
    cluster: PodCluster, agents: Callable[[Json], Json]
) -> None:
    cluster.create(a_pod("computes"))
    cluster.wait(lambda: cluster.runs("computes"), "the pod runs", timeout_s=120)
    found = cluster.pod("computes")
    node = cluster.node_of(found)
    ((uuid, _, _),) = cluster.told("computes")
    pid = node.pid_in_box(node.container_pids(node.container_id("default", "computes", "main"))[0])
    cluster.show(node, processes=(Process(uuid, pid, memory_mib=700),))
    mine = f'uuid="{uuid}"'

    def users() -> set[str]:
        """Return the pods, by UID, that the node's agent takes for those that use the card."""
        pods = cluster.system_pods(AGENT).items()  # a new one has no node yet, an old one may have gone
        here = [name for name, agent in pods if agent["spec"].get("nodeName") == node.name]
        if len(here) != 1:
            return set()
        url = f"/api/v1/namespaces/{NAMESPACE}/pods/{here[0]}:8890/proxy/metrics"
        lines = cluster.plane.kubectl("get", "--raw", url, check=False).splitlines()
        uses = [line for line in lines if line.startswith("gpuledger_agent_processes{") and mine in line]
        return {uid for line in uses for uid in re.findall(r'pod_uid="([^"]*)"', line)}

    cluster.wait(lambda: users() == {found["metadata"]["uid"]}, "the agent knows whose the process is", timeout_s=90)
    agents({"op": "replace", "path": "/spec/template/spec/hostPID", "value": False})
    cluster.wait(lambda: users() == {""}, "the agent takes the process for the node's own", timeout_s=150)


# By Helm, over what kustomize has installed.


@pytest.fixture(scope="module")
def release(installed: tuple[PodCluster, str]) -> HelmRelease:
    """Return the release that has taken the installation over."""
    cluster, _ = installed
    found = HelmRelease(cluster, the_helm().program)
    found.take_over()
    return found


def every_pod(cluster: PodCluster) -> set[str]:
    return set(cluster.system_pods()) | set(cluster.system_pods(AGENT))


def test_helm_takes_over_what_kustomize_has_installed_and_its_test_passes(
    cluster: PodCluster, release: HelmRelease
) -> None:
    cluster.create(a_pod("one"), a_pod("two"))
    cluster.wait(lambda: cluster.runs("one", "two"), "the pods run", timeout_s=120)
    check(cluster, "one", "two")
    assert "Phase:          Succeeded" in release.run("test", "--timeout=2m")


@needs_filling_in
def test_the_api_servers_policies_that_the_chart_brings_send_pods_here(
    cluster: PodCluster, release: HelmRelease
) -> None:
    pod = a_pod("plain")
    del pod["spec"]["schedulerName"]
    cluster.create(pod)
    cluster.wait(lambda: cluster.runs("plain"), "the pod runs", timeout_s=120)
    assert cluster.pod("plain")["spec"]["schedulerName"] == "gpuledger"
    check(cluster, "plain")


@needs_filling_in
def test_doctor_finds_nothing_wrong(cluster: PodCluster, release: HelmRelease) -> None:
    assert json.loads(plugin(cluster, "doctor", "-o", "json"))["findings"] == []
    statuses = [status for pod in cluster.system_pods().values() for status in pod["status"]["initContainerStatuses"]]
    before = [status["state"]["terminated"]["exitCode"] for status in statuses if status["name"] == "doctor"]
    assert before == [0, 0]  # in each replica it has let the operator start


def test_an_upgrade_and_its_rollback_lose_nothing_and_give_nothing_twice(
    cluster: PodCluster, release: HelmRelease, say: Say, tmp_path: Path
) -> None:
    previous, what = previous_release(tmp_path)
    cluster.bring_release(previous)
    changes: list[tuple[str, Callable[[], None]]] = [
        ("back", lambda: release.upgrade(previous)),
        ("forth", release.rollback),
    ]
    for name, change in changes:
        before = every_pod(cluster)
        with Stream(cluster, name) as stream:
            stream.wait_for(4)
            change()
            stream.wait_for(4)
        assert not before & every_pod(cluster)
        say(f"{name}, between this commit and {what}: {all_placed_soon_and_once(cluster, stream)}")
        remove_all(cluster)  # there are slots for one stream


def test_pods_go_on_with_their_cards_when_the_release_is_uninstalled_and_installed_again(
    cluster: PodCluster, release: HelmRelease
) -> None:
    cluster.create(a_pod("stays", 20_000))
    cluster.wait(lambda: cluster.runs("stays"), "the pod runs", timeout_s=120)
    told, entered = cluster.told("stays"), cluster.entered("stays")
    release.run("uninstall")
    cluster.wait(lambda: not every_pod(cluster), "nothing of the release is left", timeout_s=120)
    assert cluster.runs("stays")
    assert cluster.entered("stays") == entered
    release.install()
    cluster.create(a_pod("next", 70_000))
    cluster.wait(lambda: cluster.runs("stays", "next"), "both run", timeout_s=120)
    assert (cluster.told("stays"), cluster.entered("stays")) == (told, entered)
    check(cluster, "stays", "next")
