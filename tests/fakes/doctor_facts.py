"""Facts of a cluster in which all is well, for tests that change one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from fakes.objects import GPU, a_node_object, a_pod_object
from gpuledger import __version__
from gpuledger.agent.simulated import fake_nodes
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.facts import AccountAccess, Facts
from gpuledger.doctor.reading import release_for
from gpuledger.formats.custom_resource.crd import custom_resource_definition
from gpuledger.model.node import NodeConfig, NodeConfigs

Json = dict[str, Any]

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
HOST = "gpuledger-0"
"""The pod of the operator that leads."""

(NODE,) = fake_nodes("node", count=1, gpus=2, model="A100-40GB", configs=NodeConfigs(NodeConfig(mode="hami-core")))
LATE, EARLY = "2030-01-01T11:00:00.000000Z", "2030-01-01T13:00:00.000000Z"


def a_crd(**conditions: str) -> Json:
    """Return the CRD as the API server has it; keywords are conditions."""
    status = {"NamesAccepted": "True", "Established": "True", **conditions}
    listed = [{"type": name, "status": value, "message": "because"} for name, value in status.items()]
    return {**custom_resource_definition(), "status": {"conditions": listed}}


def stored_policies(settings: Settings | None = None) -> dict[tuple[str, str], Json]:
    """Return the policies of some settings, as they are found."""
    return {(each["kind"], each["metadata"]["name"]): each for each in release_for(settings or Settings()).policies}


def a_lease(renewed: str = "2030-01-01T11:59:55.000000Z", holder: str = f"{HOST}_1") -> Json:
    """Return the schedulers' Lease."""
    return {"spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}}


def our_pod(name: str, app: str, *, ready: bool = True, node: str = NODE.name, **status: Any) -> Json:
    """Return a pod of our namespace."""
    metadata = {"name": name, "namespace": "gpuledger-system", "labels": {"app.kubernetes.io/name": app}}
    conditions = [{"type": "Ready", "status": str(ready)}]
    spec = {"nodeName": node} if node else {}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "conditions": conditions, **status}}


def an_agent(*, ready: bool = True, **status: Any) -> Json:
    """Return the pod of the node's agent."""
    return our_pod("agent-0", "gpuledger-agent", ready=ready, **status)


def a_deployment(scheduler: str = "v1.36.3", replicas: int = 1) -> Json:
    """Return the Deployment of the operator."""
    image = f"registry.example:5000/kube-scheduler:{scheduler}"
    containers = [{"name": "operator", "image": f"gpuledger:{__version__}"}, {"name": "kube-scheduler", "image": image}]
    return {
        "metadata": {"name": "gpuledger"},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": containers}}},
    }


def a_daemon_set(image: str = f"registry.example:5000/gpuledger:{__version__}") -> Json:
    """Return the DaemonSet of the agents."""
    spec = {"template": {"spec": {"containers": [{"name": "agent", "image": image}]}}}
    return {"metadata": {"name": "gpuledger-agent"}, "spec": spec}


def a_gpu_node(labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None) -> Json:
    """Return the node with its agent's register."""
    node = a_node_object(NODE.name, NODE.cards)
    node["metadata"]["labels"] = dict(labels or {})
    node["metadata"]["annotations"] |= annotations or {}
    node["status"] |= {"conditions": [{"type": "Ready", "status": "True"}]}
    node["status"]["nodeInfo"] = {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.0"}
    return node


def healthy(chosen: Settings | None = None, **changes: Any) -> Facts:
    """Return the facts of a healthy cluster, with these settings, and with some facts changed."""
    settings = chosen or Settings()
    facts = Facts(
        local_time=NOW,
        server_time=NOW,
        release=release_for(settings),
        version=(1, 36),
        crd=a_crd(),
        policies=stored_policies(settings),
        webhooks=[],
        settings={"the operator": asdict(settings), "the agents": asdict(settings)},
        operator_access=AccountAccess("operator", ()),
        agent_access=AccountAccess("agents", ()),
        lease=a_lease(),
        deployment=a_deployment(),
        daemon_set=a_daemon_set(),
        our_pods=[our_pod(HOST, "gpuledger"), an_agent()],
        nodes=[a_gpu_node({"gpuledger.dev/agent": "true"})],
        cards={card.object_name: "Ready" for card in NODE.cards},
        claims=[],
        claims_held=frozenset(),
        pods_held=frozenset(),
        device_class={"metadata": {"name": "gpu.gpuledger.dev"}},
        pods=[a_pod_object("web", node_name=NODE.name), a_pod_object("other", {"cpu": "1"}, scheduler_name="any")],
        namespaces=[{"metadata": {"name": "default"}}],
        karpenter=None,
        cluster_autoscaler=None,
        node_leases=[{"metadata": {"name": NODE.name}, "spec": {"renewTime": "2030-01-01T11:59:55.000000Z"}}],
    )
    return replace(facts, **changes)


def asking_elsewhere(name: str = "by-hand") -> Json:
    """Return a pod with a GPU that another scheduler has put on the node."""
    return a_pod_object(name, {GPU: "1"}, node_name=NODE.name, scheduler_name="default-scheduler")
