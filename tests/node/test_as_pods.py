"""The whole product as pods on two real nodes: operator, kube-scheduler and agents, by kustomize, then by Helm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from build_control_plane import ensure_binaries
from build_steps import BuildError
from cluster.cluster import MEMORY, PODS, RequestFailed
from cluster.kubernetes import needs_filling_in
from control_plane import ControlPlaneError
from fakes.nvml import fake_nvml
from fakes.nvml.fake_nvml import Process
from installation import NAMESPACE, REPOSITORY
from manifests.helm import the_helm
from node.agent_pod import Watch
from node.helm_release import HelmRelease
from node.hits import HITS
from node.pod_cluster import CARDS_PER_NODE, NODES, PodCluster, previous_release, require_pods
from node.pod_stream import Stream, a_pod, all_placed_soon_and_once, check
from node.view import asked, check_view, let_ask, let_develop, uses_of

Json = dict[str, Any]
Say = Callable[[str], None]

pytestmark = pytest.mark.timeout(900)
RESTART_S = 15.0
"""What has to start again before the next Binding, or to be told that it has ended."""
FAIL_OVER_S = 20.0
"""A kube-scheduler that says nothing keeps the Lease for 10 s; beside an operator that says nothing it ends by then."""
ALONE_S = 90.0
"""The operator's own liveness probe ends it after 40 s at most. Then both programs have to start again."""

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


def remove_all(cluster: PodCluster) -> None:
    """Delete all pods and wait until they have let go of their cards."""
    cluster.request("DELETE", f"{PODS}?gracePeriodSeconds=1")
    cluster.wait(lambda: not cluster.pods() and not any(cluster.holders().values()), "no pods and no holders are left")


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


def plugin(cluster: PodCluster, *arguments: str, kubeconfig: Path | None = None) -> str:
    """Return what `kubectl gpuledger` says, with the kubectl of the cluster; it ends with 1 for a pod that waits."""
    path = os.pathsep.join([str(ensure_binaries()), str(Path(sys.executable).parent), os.environ["PATH"]])
    return cluster.plane.kubectl(
        "gpuledger", *arguments, kubeconfig=kubeconfig, environment={"PATH": path}, check=False
    )


def test_one_asks_the_operators_pod_why_through_ones_own_kubectl(cluster: PodCluster) -> None:
    cluster.create(a_pod("first", 80_000), a_pod("waits", 90_000))
    cluster.wait_bound("first")
    cluster.wait_refused("waits", "no card as large as 90000 MiB")
    told = json.loads(plugin(cluster, "explain", "pod/waits", "-o", "json"))
    short = [card["short"] for node in told["nodes"] for card in node["cards"]]
    assert (told["name"], short) == ("waits", [{"memoryMiB": 90_000 - 81_920}] * 2 * CARDS_PER_NODE)
    assert "8,080 MiB less than requested" in plugin(cluster, "explain", "pod/waits")
    assert "assigned" in plugin(cluster, "history", "pod/first")


def test_as_installed_the_view_answers_through_the_api_server_and_nobody_else(cluster: PodCluster) -> None:
    cluster.create(a_pod("seen"))
    cluster.wait(lambda: cluster.runs("seen"), "the pod runs", timeout_s=120)
    check_view(cluster, "seen")
    asks = let_ask(cluster, "asks")
    assert "seen: placed" in plugin(cluster, "explain", "pod/seen", "--namespace=default", kubeconfig=asks)
    assert "assigned" in plugin(cluster, "history", "pod/seen", "--namespace=default", kubeconfig=asks)


def test_a_developer_learns_of_each_card_through_the_service_and_reaches_nothing_else(cluster: PodCluster) -> None:
    developer = let_develop(cluster, "team-a")
    waiting = a_pod("waits", 90_000)
    waiting["metadata"]["namespace"] = "team-a"
    cluster.request("POST", "/api/v1/namespaces/team-a/pods", waiting)

    def told() -> Json:
        words = ("explain", "pod/waits", "--namespace=team-a", "-o", "json")
        return dict(json.loads(plugin(cluster, *words, kubeconfig=developer)))

    cluster.wait(lambda: bool(told()["schedulerSays"]), "the pod waits")
    assert not told()["warnings"]
    short = [card["short"] for node in told()["nodes"] for card in node["cards"]]
    assert short == [{"memoryMiB": 90_000 - 81_920}] * 2 * CARDS_PER_NODE
    service = f"/api/v1/namespaces/{NAMESPACE}/services/gpuledger-explain"
    for path in (f"{service}:explain/proxy/v1/explain?pod=team-a/waits", f"{service}:8889/proxy/metrics"):
        with pytest.raises(ControlPlaneError):  # without a token, and by another port
            cluster.plane.kubectl("get", "--raw", path, kubeconfig=developer)
    cluster.plane.kubectl("delete", "namespace", "team-a", "--wait=false")


def deleted(cluster: PodCluster, pod: str) -> None:
    """Delete a pod without giving it time."""
    cluster.plane.kubectl("delete", "pod", pod, "--namespace", NAMESPACE, "--force", "--grace-period=0")


def killed(cluster: PodCluster, pod: str) -> None:
    """Kill all processes of a pod's containers at once: the Lease stays with it."""
    for container in ("operator", "kube-scheduler"):
        HITS["killed"].do(cluster, pod, container)


@pytest.mark.parametrize("ended", [deleted, pytest.param(killed, marks=pytest.mark.long)])
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
    within_s = RESTART_S if ended is deleted else FAIL_OVER_S
    say(f"the active replica was {ended.__name__}: {all_placed_soon_and_once(cluster, stream, within_s)}")
    cluster.wait_installed()


def scheduler_restarts(cluster: PodCluster, pod: str) -> int:
    """Return how often the kube-scheduler of a pod was started again."""
    statuses = cluster.system_pods()[pod]["status"]["containerStatuses"]
    return int(next(status["restartCount"] for status in statuses if status["name"] == "kube-scheduler"))


def every_pod(cluster: PodCluster) -> set[str]:
    return set(cluster.system_pods()) | set(cluster.system_pods(AGENT))


@pytest.fixture
def active(cluster: PodCluster) -> Iterator[str]:
    """Yield the active replica's pod, which is replaced after the test: its containers would wait to start again."""
    found = cluster.active()
    yield found
    if found in cluster.system_pods():
        deleted(cluster, found)
    cluster.wait_installed()


FAILING = [
    pytest.param("operator", "stopped", id="operator-stopped"),
    *(
        pytest.param(container, hit, id=f"{container}-{hit}".replace(" ", "-"), marks=pytest.mark.long)
        for container, hit in (
            ("operator", "killed again and again"),
            ("operator", "out of memory again and again"),
            ("kube-scheduler", "killed"),
            ("kube-scheduler", "stopped"),
        )
    ),
]


@pytest.mark.parametrize(("container", "hit"), FAILING)
def test_one_of_the_active_replicas_two_programs_fails_and_another_replica_takes_over(
    cluster: PodCluster, active: str, say: Say, container: str, hit: str
) -> None:
    before = cluster.holder()
    with Stream(cluster, "hit") as stream:
        stream.wait_for(4)
        HITS[hit].do(cluster, active, container)

        def taken_over() -> bool:
            HITS[hit].repeat(cluster, active, container)
            return cluster.holder() not in (before, "")

        cluster.wait(taken_over, "another process is active")
        next_one = cluster.active()
        if hit == "stopped":
            HITS["continued"].do(cluster, active, container)
        stream.wait_for(4)
    say(f"the active {container} was {hit}: {all_placed_soon_and_once(cluster, stream, FAIL_OVER_S)}")
    if container == "operator":  # the scheduler beside it waits for it, and does not take the Lease again
        assert next_one != active


@pytest.mark.long
@pytest.mark.parametrize("hit", ["killed", "out of memory"])
def test_an_operator_that_is_started_again_is_back_before_its_scheduler_would_end(
    cluster: PodCluster, active: str, say: Say, hit: str
) -> None:
    before, restarts = cluster.holder(), scheduler_restarts(cluster, active)
    with Stream(cluster, "again") as stream:
        stream.wait_for(4)
        HITS[hit].do(cluster, active, "operator")
        cluster.wait_installed()
        stream.wait_for(4)
    say(f"the active operator was once {hit}: {all_placed_soon_and_once(cluster, stream, RESTART_S)}")
    assert (cluster.holder(), scheduler_restarts(cluster, active)) == (before, restarts)


@pytest.fixture
def single(cluster: PodCluster) -> Iterator[str]:
    """Yield the pod of a Deployment that has one replica, for the time of a test."""
    cluster.plane.kubectl("scale", "deployment/gpuledger", "--namespace", NAMESPACE, "--replicas=1")
    cluster.wait(lambda: list(cluster.system_pods()) == [cluster.active()], "the only pod is the active one")
    yield cluster.active()
    cluster.change()
    cluster.wait_installed()


@pytest.mark.long
def test_a_single_replica_whose_operator_is_stopped_comes_back(cluster: PodCluster, single: str, say: Say) -> None:
    with Stream(cluster, "single") as stream:
        stream.wait_for(4)
        HITS["stopped"].do(cluster, single, "operator")
        stream.wait_for(4)
    cluster.wait_bound(*stream.created, timeout_s=ALONE_S)
    assert list(cluster.system_pods()) == [single]
    say(f"the only replica's operator was stopped: {all_placed_soon_and_once(cluster, stream, ALONE_S)}")


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


@pytest.mark.long  # an upgrade rolls them, too
def test_a_changed_setting_rolls_the_replicas_under_load(cluster: PodCluster, say: Say) -> None:
    before = set(cluster.system_pods())
    with Stream(cluster, "rolled") as stream:
        stream.wait_for(4)
        cluster.change(node_policy="spread")
        cluster.wait_installed()
        stream.wait_for(4)
    assert not before & set(cluster.system_pods())
    say(f"a setting was changed: {all_placed_soon_and_once(cluster, stream)}")


def test_history_goes_on_over_an_upgrade_of_both_replicas_and_a_changed_setting(cluster: PodCluster, say: Say) -> None:
    cluster.create(a_pod("told", 20_000))
    cluster.wait(lambda: cluster.runs("told"), "the pod runs", timeout_s=120)

    def records(*what: str) -> list[Json]:
        return list(json.loads(plugin(cluster, "history", *what, "-o", "json"))["records"])

    told = records("pod/told")
    assert [record["kind"] for record in told] == ["assigned"]
    begin = records()[0]["time"]
    before = set(cluster.system_pods())
    cluster.plane.kubectl("rollout", "restart", "deployment/gpuledger", "--namespace", NAMESPACE)
    cluster.wait_installed()
    assert not before & set(cluster.system_pods()), "all replicas are new"
    assert records("pod/told") == told
    cluster.change(node_policy="spread")
    cluster.wait_installed()
    assert records("pod/told", "--since", begin) == told
    cluster.delete("told")
    cluster.wait(lambda: len(records("pod/told")) == 2, "its release is recorded")
    cluster.change()
    cluster.wait_installed()
    assert [record["kind"] for record in records("pod/told")] == ["assigned", "released"]
    active = [record["text"] for record in records("--kind", "active")]
    assert any('changed: node_policy from the default to "spread"' in text for text in active), active
    every = [tuple(sorted(record.items(), key=str)) for record in records("--limit", "10000")]
    assert len(every) == len(set(map(str, every))), "each is shown once"
    say(plugin(cluster, "history"))


HAMIS = "/api/v1/namespaces/kube-system/configmaps/hami-scheduler-device"
ALLOW_HAMIS = (  # as docs/settings.md has it
    "create role gpuledger-config -n kube-system --verb=get,list,watch --resource=configmaps "
    "--resource-name=hami-scheduler-device",
    "create rolebinding gpuledger-config -n kube-system --role=gpuledger-config "
    "--serviceaccount=gpuledger-system:gpuledger --serviceaccount=gpuledger-system:gpuledger-agent",
)


def hamis_config(**nvidia: object) -> Json:
    return {"data": {"device-config.yaml": json.dumps({"nvidia": nvidia})}}


@pytest.fixture
def follows_hami(cluster: PodCluster) -> Iterator[None]:
    """Have the settings name HAMi's ConfigMap, which has all of HAMi's defaults; later no more."""
    cluster.request("POST", HAMIS.rpartition("/")[0], {"metadata": {"name": "hami-scheduler-device"}, **hamis_config()})
    for words in ALLOW_HAMIS:
        cluster.plane.kubectl(*words.split())
    names = ("count", "memory", "memory_percentage", "cores", "priority")
    left_to_hami: dict[str, Any] = {f"resource_{name}": None for name in names}
    cluster.change(hami_config_file="configmap:kube-system/hami-scheduler-device", **left_to_hami)
    cluster.wait_installed()
    yield
    cluster.change()
    cluster.wait_installed()


@pytest.mark.usefixtures("follows_hami")
def test_a_changed_config_map_of_hami_counts_in_the_same_pods(cluster: PodCluster, say: Say) -> None:
    """Operator and kube-scheduler start again where they are, and each agent's serving process."""
    before = every_pod(cluster)
    cluster.create(a_pod("first", 1_000))
    cluster.wait(lambda: cluster.runs("first"), "the first pod runs", timeout_s=120)
    watch = Watch()
    cluster.patch(HAMIS, hamis_config(resourceMemoryName="example.com/mem", deviceSplitCount=5))
    cluster.wait(
        lambda: {card["spec"]["capacity"]["number"] for card in cluster.cards().values()} == {5},
        "the agents report other slots",
        timeout_s=120,
    )
    renamed = a_pod("renamed", 2_000)
    limits = renamed["spec"]["containers"][0]["resources"]["limits"]
    limits["example.com/mem"] = limits.pop(MEMORY)
    cluster.create(renamed)
    cluster.wait(lambda: cluster.runs("renamed"), "a pod that uses the new name runs", timeout_s=120)
    say(f"a changed ConfigMap counts in operator, scheduler and agents: {watch}")
    assert [memory for _, memory, _ in cluster.told("renamed")] == [2_000]
    assert cluster.runs("first")
    cluster.wait(  # that of the replica on standby, which no pod here needs, may be the last
        lambda: all(scheduler_restarts(cluster, replica) for replica in cluster.system_pods()),
        "each kube-scheduler has started again",
        timeout_s=120,
    )
    assert every_pod(cluster) == before
    for replica in cluster.system_pods():
        assert scheduler_restarts(cluster, replica) == 1


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

    cluster.wait(
        lambda: "the kubelet is not connected" in answer(), "the agent says why it is not ready", timeout_s=120
    )


@pytest.mark.long  # what it knows then is asked in the next one
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


def test_what_a_pod_uses_is_asked_of_its_nodes_agent_by_people_and_for_the_page(cluster: PodCluster) -> None:
    cluster.create(a_pod("computes"), a_pod("rests"))
    cluster.wait(lambda: cluster.runs("computes", "rests"), "the pods run", timeout_s=120)
    node = cluster.node_of(cluster.pod("computes"))
    ((uuid, _, _),) = cluster.told("computes")
    pid = node.pid_in_box(node.container_pids(node.container_id("default", "computes", "main"))[0])
    cluster.show(node, processes=(Process(uuid, pid, memory_mib=700),))
    expected = {"computes": (700, "in use"), "rests": (0, "idle")}

    def told() -> Json:
        return dict(json.loads(plugin(cluster, "top", "--usage", "-o", "json")))

    cluster.wait(lambda: uses_of(told()) == expected, "people see what is used", timeout_s=90)
    replicas = cluster.system_pods()
    assert len(replicas) == 2
    for replica in replicas:  # the standby one, too
        cluster.wait(partial(shows, cluster, replica, expected), "so do viewers")
    cluster.show(node)


def shows(cluster: PodCluster, replica: str, expected: dict[str, tuple[int, str]]) -> bool:
    return uses_of(asked(cluster, replica, "v1/usage")) == expected


# By Helm, over what kustomize has installed.


@pytest.fixture(scope="module")
def release(installed: tuple[PodCluster, str]) -> HelmRelease:
    """Return the release that has taken the installation over."""
    cluster, _ = installed
    found = HelmRelease(cluster, the_helm().program)
    found.take_over()
    return found


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
    cluster.plane.kubectl("label", "namespace", "default", "gpuledger.dev/admission=true")
    asked = ("create", "--filename=-", "--dry-run=server", "--output=jsonpath={.spec.schedulerName}")
    cluster.wait(
        lambda: cluster.plane.kubectl(*asked, stdin=json.dumps(pod)) == "gpuledger", "the API server knows the label"
    )
    cluster.create(pod)
    cluster.wait(lambda: cluster.runs("plain"), "the pod runs", timeout_s=120)
    assert cluster.pod("plain")["spec"]["schedulerName"] == "gpuledger"
    check(cluster, "plain")


@needs_filling_in
def test_doctor_finds_nothing_wrong_but_that_this_image_has_nothing_to_enforce_shares_with(
    cluster: PodCluster, release: HelmRelease
) -> None:
    findings = json.loads(plugin(cluster, "doctor", "-o", "json"))["findings"]
    nodes = {f"node {node.name}" for node in cluster.nodes}
    assert {(found["id"], found["where"]) for found in findings} == {("isolation-none", node) for node in nodes}
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
    check_view(cluster, "next")
    assert "next: placed" in plugin(cluster, "explain", "pod/next")
