"""The agent as a pod: out of the image, by the manifests as they stand, with its own token and the rights they list.

When it is killed, and when it hangs, new GPU pods wait with a reason that names it, running ones are not touched, and
all goes on after the restart.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cluster.cluster import NODES
from control_plane import ControlPlaneError
from fakes.shared_library import a_library
from gpuledger.doctor.examination import Examination, examine
from gpuledger.doctor.reading import Reading
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.kube_api.client import KubeClient
from node.agent_pod import HAMI_CORE, LABEL, NAME, NAMESPACE, TOKEN, AgentPod, Watch, ended, kubelet_of, stopped
from node.gpu_node import gpu_pod, one_card
from node.pods import a_pod

NOT_READY = "GPU node agent is not ready"
HANGS = "node starts no pods: its kubelet or GPU node agent hangs"
DRIVER_NOT_LOADED = 9
"""NVML's code, as of nvml.h."""

pytestmark = pytest.mark.timeout(300)
Say = Callable[[str], None]


def running(agent: AgentPod, count: int = 4) -> dict[str, tuple[str, int]]:
    """Start pods with shares, check what they got, and return pod -> id and restarts of its container."""
    names = agent.gpu.create(*(gpu_pod(f"before-{n}", one_card(4000 + n, gpucores=5 + n)) for n in range(count)))
    agent.gpu.wait_running(*names)
    agent.gpu.check(*names)
    return agent.gpu.identities(*names)


def starts_after(agent: AgentPod, before: dict[str, tuple[str, int]], *waiting: str) -> None:
    """Check that pods that waited and new ones start, with their own cards, and that running ones are as before."""
    names = [*waiting, *agent.gpu.create(gpu_pod("after", one_card(3000)))]
    agent.gpu.wait_running(*names)
    agent.gpu.check(*before, *names)
    assert agent.gpu.identities(*before) == before
    assert {restarts for _, restarts in before.values()} == {0}


def failed(agent: AgentPod, name: str) -> None:
    """Check that the kubelet has given up a pod whose Allocate broke off, and remove it, as its controller would."""
    agent.gpu.cluster.wait(lambda: agent.gpu.cluster.pod(name)["status"].get("phase") == "Failed", f"{name} has failed")
    assert agent.gpu.cluster.pod(name)["status"]["reason"] == "UnexpectedAdmissionError"
    agent.gpu.remove(name)


def test_pods_get_exactly_their_cards_from_an_agent_that_is_a_pod(agent: AgentPod, say: Say) -> None:
    watch = Watch()
    before = running(agent, count=8)
    say(f"{len(before)} pods with shares run {watch} after the first was created; the agent is a pod")
    agent.gpu.cluster.check_consistent()
    say(f"its container uses {agent.memory_mib():.0f} MiB, and has used {agent.cpu_s():.1f} s of a processor")


def test_its_kubelet_takes_it_up_as_a_driver_for_claims_and_it_says_so(agent: AgentPod) -> None:
    path = f"{NODES}/{agent.node.name}"
    agent.gpu.cluster.patch(path, {"metadata": {"annotations": {SERVES_CLAIMS_ANNOTATION: None}}})

    def says() -> bool:
        found = agent.gpu.cluster.request("GET", path)["metadata"]["annotations"]
        return bool(found.get(SERVES_CLAIMS_ANNOTATION) == "true")

    agent.gpu.cluster.wait(says, "its node says that it serves claims")


def test_it_has_no_rights_but_those_that_the_manifest_lists(agent: AgentPod) -> None:
    none = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16)
    assert agent.rights() == [{**none, "NoNewPrivs": "1", "Seccomp": "2"}] * 2
    container = agent.pod()["spec"]["containers"][0]
    assert not container["securityContext"].get("privileged")
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    of_kubelet = {f"/var/lib/kubelet/{name}" for name in ("device-plugins", "plugins_registry")}
    assert writable == of_kubelet | {"/var/run/cdi", "/var/lib/gpuledger", HAMI_CORE}
    for place in ("/", "/usr", "/settings", "/var/lib/kubelet/pod-resources", "/etc/cdi", "/run/nvidia/mps"):
        assert "Read-only file system" in agent.execute("sh", "-c", f"touch {place}/x 2>&1 || true"), place
    running(agent, count=2)


def test_its_token_is_good_for_its_own_node_and_for_its_cards_alone(agent: AgentPod, tmp_path: Path) -> None:
    plane, node = agent.plane, agent.node.name
    users = {event.user for event in plane.api_writes() if (event.resource, event.name) == ("nodes", node)}
    assert f"system:serviceaccount:{NAMESPACE}:{NAME}" in users
    kubeconfig = tmp_path / "kubeconfig"
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": agent.execute("cat", TOKEN)}
    kubeconfig.write_text(yaml.safe_dump(config))
    assert agent.pod()["metadata"]["name"] in plane.kubectl("auth", "whoami", "--output=yaml", kubeconfig=kubeconfig)

    def attempt(verb: str, name: str, change: str) -> None:
        plane.kubectl(verb, "node", name, change, "--overwrite", kubeconfig=kubeconfig)

    agent.gpu.cluster.request("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}})
    try:
        attempt("annotate", node, "gpuledger.dev/tried=yes")
        with pytest.raises(ControlPlaneError, match=f"its token is for node {node}, not for other"):
            attempt("annotate", "other", "gpuledger.dev/gpus=[]")
        with pytest.raises(ControlPlaneError, match=r"annotations under gpuledger\.dev/, and nothing else"):
            attempt("label", node, f"{LABEL}=false")
        with pytest.raises(ControlPlaneError, match=r"only those under gpuledger\.dev/"):
            attempt("annotate", node, "volumes.kubernetes.io/controller-managed-attach-detach=false")
    finally:
        agent.gpu.cluster.request("DELETE", f"{NODES}/other")
        plane.kubectl("annotate", "node", node, "gpuledger.dev/tried-")


def test_it_is_killed(agent: AgentPod, say: Say) -> None:
    """The first time, the kubelet starts it again at once; the second time, after its pause of ten seconds."""
    before = running(agent)
    for restarts in (1, 2):
        watch = Watch()
        os.kill(agent.parent(), signal.SIGKILL)
        if restarts == 2:
            agent.gpu.cluster.wait(lambda: not agent.gpu.open_cards(), "the node is closed")
            agent.gpu.create(gpu_pod("waits", one_card(2000)))
            agent.gpu.cluster.wait_refused("waits", NOT_READY)
            say(f"killed again: a new pod waits for the agent, its events say {watch} after it")
        agent.gpu.cluster.wait(lambda n=restarts: agent.restarts() == n, "it is started again")  # type: ignore[misc]
        agent.wait_ready()
        say(f"killed {restarts} times: ready again {watch} after it")
    agent.gpu.wait_running("waits")
    say(f"the pod that waited runs {watch} after it")
    starts_after(agent, before)


@pytest.mark.long  # the next one is the same, and more
def test_its_child_hangs(agent: AgentPod, say: Say) -> None:
    before = running(agent)
    child, restarts = agent.child(), agent.restarts()
    watch = Watch()
    with stopped(child):
        agent.gpu.cluster.wait(lambda: ended(child), "the parent kills the child that hangs")
        say(f"the child is killed {watch} after it began to hang")
    agent.gpu.cluster.wait(agent.gpu.ready, "the next child serves")
    agent.wait_ready()
    say(f"the next one is ready {watch} after it")
    starts_after(agent, before)
    assert agent.child() != child
    assert agent.restarts() == restarts, "the container goes on"


def test_its_child_hangs_with_an_allocate_in_flight(agent: AgentPod, say: Say) -> None:
    """The kubelet asks with no deadline in its sync loop. The pod that it asked for fails; all others go on."""
    before = running(agent)
    child = agent.child()
    with stopped(kubelet_of(agent.gpu)):  # until the pod is there, so that it asks at once
        agent.gpu.create(gpu_pod("asked", one_card(2000)))
        agent.gpu.cluster.wait_bound("asked")
        os.kill(child, signal.SIGSTOP)
    watch = Watch()
    agent.gpu.create(a_pod("plain", nodeName=agent.node.name))
    agent.gpu.cluster.wait(lambda: ended(child), "the parent kills the child that hangs")
    say(f"the child is killed {watch} after it began to hang with an Allocate in flight")
    failed(agent, "asked")
    agent.gpu.wait_running("plain")
    say(f"the kubelet goes on: a pod without a GPU runs {watch} after it")
    agent.wait_ready()
    say(f"the next child is ready {watch} after it")
    starts_after(agent, before)
    assert agent.child() != child


def test_all_of_it_hangs_and_the_kubelets_probes_notice(agent: AgentPod, say: Say) -> None:
    before = running(agent)
    restarts, watch = agent.restarts(), Watch()
    with stopped(agent.parent(), agent.child()):
        agent.wait_not_ready()
        agent.gpu.cluster.wait(lambda: not agent.gpu.open_cards(), "the node is closed")
        say(f"parent and child hang: the pod is not Ready {watch} after it")
        agent.gpu.create(gpu_pod("waits", one_card(2000)))
        agent.gpu.cluster.wait_refused("waits", NOT_READY)
        agent.gpu.cluster.wait(lambda: agent.restarts() > restarts, "the kubelet starts it again", timeout_s=150)
    say(f"the kubelet has started it again {watch} after it")
    agent.wait_ready()
    agent.gpu.wait_running("waits")
    say(f"the pod that waited runs {watch} after it")
    starts_after(agent, before)


def test_all_of_it_hangs_with_an_allocate_in_flight(agent: AgentPod, say: Say) -> None:
    """The kubelet stands still, its probes too. The ledger closes the node, as a bound pod does not start."""
    before = running(agent)
    child, parent = agent.child(), agent.parent()
    watch = Watch()
    with stopped(parent, child):
        agent.gpu.create(gpu_pod("asked", one_card(2000)))
        agent.gpu.cluster.wait_bound("asked")
        agent.gpu.create(a_pod("plain", nodeName=agent.node.name))
        agent.gpu.cluster.wait(lambda: not agent.gpu.open_cards(), "the node is closed")
        agent.gpu.create(gpu_pod("late", one_card(1000)))
        agent.gpu.cluster.wait_refused("late", HANGS)
        say(f"parent and child hang with an Allocate in flight: new pods wait {watch} after it")
        assert "startTime" not in agent.gpu.cluster.pod("plain")["status"], "the kubelet takes up no pod at all"
        say(f"the kubelet says of the agent's pod: {'Ready' if agent.ready() else 'not Ready'}")
        freed = Watch()
        os.kill(parent, signal.SIGCONT)
        agent.gpu.cluster.wait(lambda: ended(child), "the parent kills the child that hangs")
    failed(agent, "asked")
    agent.gpu.wait_running("plain")
    say(f"the parent wakes: the kubelet goes on, and a pod without a GPU runs {freed} after it")
    agent.wait_ready()
    agent.gpu.wait_running("late")
    say(f"the pod that waited runs {freed} after it")
    starts_after(agent, before)


def test_the_doctor_tells_of_an_agent_that_has_no_driver(installed: AgentPod) -> None:
    gpu = installed.gpu
    gpu.show(replace(before := gpu.state, driver_error=DRIVER_NOT_LOADED))
    try:
        installed.plane.kubectl("label", "node", installed.node.name, f"{LABEL}=true")
        runs = "container agent runs, but reports that it is not ready"
        gpu.cluster.wait(lambda: runs in of_the_node(installed).get("agent-not-ready", ""), runs, timeout_s=120)
        found = of_the_node(installed)
        # The kubelet, its runtime and its clock are fine. Without a driver, nothing can limit memory either.
        assert found.keys() <= {"agent-not-ready", "plugin-silent", "isolation-none"}
    finally:
        gpu.show(before)
        installed.stop()


def of_the_node(agent: AgentPod) -> dict[str, str]:
    """Return what the doctor finds wrong with the node: id -> text."""

    async def look() -> Examination:
        client = await KubeClient.connect(agent.plane.kubeconfig)
        try:
            return examine(await Reading(client).all())
        finally:
            await client.close()

    found = asyncio.run(look()).findings
    return {each.kind.value: each.text for each in found if each.where == f"node {agent.node.name}"}


def test_an_agent_that_has_nothing_to_enforce_shares_with_says_so_on_its_node(agent: AgentPod) -> None:
    events = agent.plane.kubectl("get", "events", "--namespace=default", "--output=json")
    said = [each["message"] for each in json.loads(events)["items"] if each["reason"] == "GPUSharesNotEnforced"]
    assert len(said) == 1
    assert said[0].startswith(
        f"node {agent.node.name}: nothing keeps containers to their shares of GPUs: HAMi-core: no image"
    )


@pytest.mark.promise("isolation")
def test_the_library_that_the_agents_image_brings_limits_containers_by_default(
    installed: AgentPod, tmp_path: Path
) -> None:
    """No setting but the node's own directory: `auto`, and what the Dockerfile puts into the image."""
    library = tmp_path / "libvgpu.so.v2.9.0"
    library.write_bytes(a_library())
    installed.bring_image(library)
    try:
        installed.start()
        cluster = installed.gpu.cluster
        cluster.wait(
            lambda: {card["spec"]["mode"] for card in cluster.cards().values()} == {"hami-core"}, "the cards say so"
        )
        installed.gpu.create(gpu_pod("limited", one_card(3000)))
        installed.gpu.wait_running("limited")
        inside = installed.node.container_execute(
            "default", "limited", "main", "sh", "-c", "env; cat /etc/ld.so.preload"
        )
        assert {"CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "/usr/local/vgpu/libvgpu.so"} <= set(inside.splitlines())
    finally:
        installed.gpu.remove_all()
        installed.stop()
        installed.bring_image()
