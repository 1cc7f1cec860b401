"""`kubectl gpuledger doctor` on the real API server: nothing on a healthy cluster, and each fault that is planted.

Operator and kube-scheduler run as processes here, and the pod that they would be is a Pod that nobody runs: it has the
host name that the scheduler writes into the Lease. So this cluster is not shared with other tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_control_plane import ensure_binaries
from cluster.cluster import COUNT, COUNTS, MEMORY, NODES, PODS, Cluster, pod
from cluster.kubernetes import apply_policies, needs_filling_in
from control_plane import ControlPlane
from gpuledger.configuration.dialects import policies
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.examination import Examination, examine
from gpuledger.doctor.reading import Reading
from gpuledger.formats.custom_resource.crd import as_yaml
from gpuledger.kube_api.client import KubeClient
from installation import MANIFESTS, NAMESPACE, NO_KUBELET, Installation

Json = dict[str, Any]

pytestmark = needs_filling_in  # without that, a webhook is needed for a healthy cluster
POD = "gpuledger-0"
STATED = Settings().changed(yaml.safe_load((MANIFESTS / "settings.yaml").read_text()))
"""The settings of the manifests, which the operator's workload has by its ConfigMap."""

"""Of the operator, and host name of its kube-scheduler."""

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
OURS = f"/api/v1/namespaces/{NAMESPACE}"
LEASES = "/apis/coordination.k8s.io/v1/namespaces"
OUR_LEASE = f"{LEASES}/{NAMESPACE}/leases/gpuledger-scheduler"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpuallocations.gpuledger.dev"
REGISTER = "gpuledger.dev/gpus"
JSON_PATCH = "application/json-patch+json"


@dataclass
class Clinic:
    """A cluster, and the doctor's way to it."""

    cluster: Cluster
    node: str
    directory: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, status: int, **environment: str) -> tuple[str, str]:
        """Run `kubectl gpuledger doctor`; return what it prints, and what it logs."""
        argv = [str(self.directory / "kubectl"), "gpuledger", "doctor", *arguments]
        environment = {**self.environment, **environment}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, (done.stdout, done.stderr)
        return done.stdout, done.stderr

    def findings(self, *arguments: str, status: int) -> dict[str, Json]:
        """Return id -> a finding of the command."""
        return {
            each["id"]: each for each in json.loads(self.run("-o", "json", *arguments, status=status)[0])["findings"]
        }

    def examine(self) -> Examination:
        """Do in this process what the command does: twice as fast."""

        async def look() -> Examination:
            client = await KubeClient.connect(self.cluster.plane.kubeconfig)
            try:
                return examine(await Reading(client).all())
            finally:
                await client.close()

        return asyncio.run(look())


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    """Yield a healthy cluster."""
    with ControlPlane.run() as plane:  # with the policies, and each part of it is broken
        installation = Installation(plane, NO_KUBELET, name=POD, replicated=True)
        installation.start()
        apply_policies(plane, STATED)
        cluster = Cluster(plane, installation)
        (node,) = cluster.add_nodes(1, gpus=2)
        cluster.request("POST", f"{OURS}/pods", our_pod(POD, "gpuledger", node.name))
        set_ready(cluster, POD, ready=True)
        cluster.wait(lambda: holder(cluster).startswith(f"{POD}_"), "the scheduler leads")
        yield Clinic(cluster, node.name, *way_to(cluster, tmp_path_factory.mktemp("bin")))
        cluster.close()


def way_to(cluster: Cluster, directory: Path) -> tuple[Path, dict[str, str]]:
    """Return a directory with kubectl and the plugin, and the environment in which they are found."""
    plugin = directory / "kubectl-gpuledger"
    plugin.write_text(f"#!{sys.executable}\nfrom gpuledger.command_line.program import kubectl_main\nkubectl_main()\n")
    plugin.chmod(0o755)
    (directory / "kubectl").symlink_to(ensure_binaries() / "kubectl")
    environment = {**os.environ, "PATH": f"{directory}:/usr/bin:/bin", "KUBECONFIG": str(cluster.plane.kubeconfig)}
    environment |= {"KUBECACHEDIR": str(directory / "cache"), "KUBERC": "off"}
    environment.pop("GPULEDGER_SETTINGS", None)
    return directory, environment


def our_pod(name: str, app: str, node: str) -> Json:
    found = pod(name, {}, schedulerName="nobody", nodeName=node)
    found["metadata"] |= {"namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": app}}
    return found


def set_ready(cluster: Cluster, name: str, ready: bool) -> None:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    cluster.patch(f"{OURS}/pods/{name}/status", {"status": status})


def holder(cluster: Cluster) -> str:
    leases = cluster.request("GET", f"{LEASES}/{NAMESPACE}/leases")["items"]
    return "".join(each["spec"]["holderIdentity"] or "" for each in leases)


# The faults. Each is planted, and taken back at the end of its `with`.

Plant = Callable[[Clinic], AbstractContextManager[object]]


@contextmanager
def changed(clinic: Clinic, path: str, change: Json, back: Json) -> Iterator[None]:
    """Change an object, and change it back."""
    clinic.cluster.patch(path, change)
    yield
    clinic.cluster.patch(path, back)


@contextmanager
def created(clinic: Clinic, path: str, body: Json) -> Iterator[None]:
    """Create an object, and delete it."""
    clinic.cluster.request("POST", path, body)
    yield
    clinic.cluster.request("DELETE", f"{path}/{body['metadata']['name']}", {"gracePeriodSeconds": 0})


@contextmanager
def deleted(clinic: Clinic, path: str, name: str) -> Iterator[None]:
    """Delete an object, and create it again."""
    before = clinic.cluster.request("GET", f"{path}/{name}")
    clinic.cluster.request("DELETE", f"{path}/{name}")
    yield
    for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"):
        before["metadata"].pop(key, None)
    before.pop("status", None)
    clinic.cluster.request("POST", path, before)


def node_path(clinic: Clinic) -> str:
    return f"{NODES}/{clinic.node}"


@contextmanager
def another_crd(clinic: Clinic) -> Iterator[None]:
    where = "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations/0"
    clinic.cluster.request("PATCH", CRD, [{"op": "remove", "path": where}], JSON_PATCH)
    yield
    clinic.cluster.plane.kubectl("apply", "-f", "-", stdin=as_yaml())


def missing_policy(clinic: Clinic) -> AbstractContextManager[None]:
    return deleted(clinic, f"{ADMISSION}/validatingadmissionpolicies", "gpuledger-requests")


def missing_binding(clinic: Clinic) -> AbstractContextManager[None]:
    return deleted(clinic, f"{ADMISSION}/validatingadmissionpolicybindings", "gpuledger-devices")


def audit_only(clinic: Clinic) -> AbstractContextManager[None]:
    path = f"{ADMISSION}/validatingadmissionpolicybindings/gpuledger-agents"
    return changed(clinic, path, {"spec": {"validationActions": ["Audit"]}}, {"spec": {"validationActions": ["Deny"]}})


def policy_of_fewer_namespaces(clinic: Clinic) -> AbstractContextManager[None]:
    path = f"{ADMISSION}/validatingadmissionpolicybindings/gpuledger-devices"
    scope = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
    return changed(clinic, path, {"spec": {"matchResources": scope}}, {"spec": {"matchResources": None}})


@contextmanager
def policies_of_other_settings(clinic: Clinic) -> Iterator[None]:
    kinds = frozenset(("validating", "mutating"))
    other = replace(STATED, resource_count="example.com/gpu")
    clinic.cluster.plane.kubectl("apply", "-f", "-", stdin=policies(other, kinds))
    yield
    clinic.cluster.plane.kubectl("apply", "-f", "-", stdin=policies(STATED, kinds))


@contextmanager
def no_writes_to_the_ledger(clinic: Clinic) -> Iterator[None]:
    path = f"{ROLES}/clusterroles/gpuledger"
    rules = clinic.cluster.request("GET", path)["rules"]
    kept = [rule for rule in rules if rule["resources"] != ["gpuallocations/status"]]
    assert len(kept) < len(rules)
    asked = {"verb": "patch", "group": "gpuledger.dev", "resource": "gpuallocations", "subresource": "status"}
    with changed(clinic, path, {"rules": kept}, {"rules": rules}):
        wait_until_allowed(clinic, "gpuledger", asked, allowed=False)
        yield
    wait_until_allowed(clinic, "gpuledger", asked, allowed=True)


@contextmanager
def agents_without_events(clinic: Clinic) -> Iterator[None]:
    asked = {"verb": "create", "resource": "events", "namespace": "default"}
    with deleted(clinic, f"{ROLES}/namespaces/default/rolebindings", "gpuledger-agent"):
        wait_until_allowed(clinic, "gpuledger-agent", asked, allowed=False)
        yield
    wait_until_allowed(clinic, "gpuledger-agent", asked, allowed=True)


def wait_until_allowed(clinic: Clinic, account: str, asked: Json, allowed: bool) -> None:
    """Wait until the API server has taken in a changed role: it looks at a copy."""
    spec = {"user": f"system:serviceaccount:{NAMESPACE}:{account}", "resourceAttributes": asked}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

    def answer() -> bool:
        return bool(clinic.cluster.request("POST", path, {"spec": spec})["status"]["allowed"])

    clinic.cluster.wait(lambda: answer() is allowed, f"{account} may do {asked}: {allowed}")


@contextmanager
def dead_scheduler(clinic: Clinic) -> Iterator[None]:
    installation = clinic.cluster.installation
    assert installation.scheduler
    installation.scheduler.kill()
    clinic.cluster.patch(OUR_LEASE, {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}})
    yield
    clinic.cluster.request("DELETE", OUR_LEASE)  # nobody has to wait until it has run out
    installation.start_scheduler()
    clinic.cluster.wait(lambda: holder(clinic.cluster).startswith(f"{POD}_"), "the scheduler leads again")


@contextmanager
def operator_not_ready(clinic: Clinic) -> Iterator[None]:
    set_ready(clinic.cluster, POD, ready=False)
    yield
    set_ready(clinic.cluster, POD, ready=True)


@contextmanager
def dead_operator(clinic: Clinic) -> Iterator[None]:
    """Kill the operator, and wait until kube-scheduler says in a pod's condition that nobody answers."""
    cluster = clinic.cluster
    cluster.installation.kill_operator()
    with created(clinic, PODS, pod("asks", {COUNT: 1, MEMORY: 1000})):
        cluster.wait(lambda: scheduled_reason(cluster, "asks") == "SchedulerError", "the scheduler fails to ask")
        yield
    cluster.installation.start_operator()


def scheduled_reason(cluster: Cluster, name: str) -> str:
    conditions = cluster.pod(name).get("status", {}).get("conditions", [])
    return "".join(each.get("reason", "") for each in conditions if each["type"] == "PodScheduled")


def newer_scheduler(clinic: Clinic) -> AbstractContextManager[None]:
    path = f"{APPS}/deployments/gpuledger"
    containers = clinic.cluster.request("GET", path)["spec"]["template"]["spec"]["containers"]
    position = [each["name"] for each in containers].index("kube-scheduler")
    where = f"/spec/template/spec/containers/{position}/image"
    return replaced(clinic, path, where, "registry.example/kube-scheduler:v1.40.0", containers[position]["image"])


@contextmanager
def replaced(clinic: Clinic, path: str, where: str, value: object, back: object) -> Iterator[None]:
    for each in (value, back):
        clinic.cluster.request("PATCH", path, [{"op": "replace", "path": where, "value": each}], JSON_PATCH)
        if each is value:
            yield


@contextmanager
def settings_in(clinic: Clinic, workload: str, **values: object) -> Iterator[None]:
    """Give a workload a ConfigMap of its own, with some settings changed."""
    path = f"{APPS}/{workload}"
    volumes = clinic.cluster.request("GET", path)["spec"]["template"]["spec"]["volumes"]
    position = [each["name"] for each in volumes].index("settings")
    text = {**yaml.safe_load((MANIFESTS / "settings.yaml").read_text()), **values}
    other = {"metadata": {"name": "other-settings"}, "data": {"settings.yaml": yaml.safe_dump(text)}}
    where, name = f"/spec/template/spec/volumes/{position}/configMap/name", volumes[position]["configMap"]["name"]
    with created(clinic, f"{OURS}/configmaps", other), replaced(clinic, path, where, "other-settings", name):
        yield


def agents_with_other_settings(clinic: Clinic) -> AbstractContextManager[None]:
    return settings_in(clinic, "daemonsets/gpuledger-agent", resource_count="example.com/gpu")


def label(clinic: Clinic, value: str | None) -> None:
    clinic.cluster.patch(node_path(clinic), {"metadata": {"labels": {"gpuledger.dev/agent": value}}})


@contextmanager
def labelled_without_agent(clinic: Clinic) -> Iterator[None]:
    label(clinic, "true")
    yield
    label(clinic, None)


@contextmanager
def agent_not_ready(clinic: Clinic) -> Iterator[None]:
    agent = our_pod("agent-0", "gpuledger-agent", clinic.node)
    agent["spec"]["containers"][0]["name"] = "agent"
    with created(clinic, f"{OURS}/pods", agent):
        set_ready(clinic.cluster, "agent-0", ready=False)
        yield


@contextmanager
def kubelet_with_log(clinic: Clinic, log: str) -> Iterator[None]:
    """Be the node's kubelet, as far as it is asked for the log of the agent's container."""

    class Kubelet(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.path.startswith(f"/containerLogs/{NAMESPACE}/agent-0/agent?")
            self.send_response(200 if asked else 404)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(log.encode() if asked else b"")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(*clinic.cluster.plane.serving_files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    server.socket = trust.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = {"kubeletEndpoint": {"Port": server.server_port}}
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    path = f"{node_path(clinic)}/status"
    none = {"status": {"addresses": None, "daemonEndpoints": None}}
    try:
        with changed(clinic, path, {"status": {"addresses": addresses, "daemonEndpoints": endpoint}}, none):
            yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def gpus_of_nobody(clinic: Clinic) -> AbstractContextManager[None]:
    labels = {"nvidia.com/gpu.present": "true"}
    return created(clinic, NODES, {"metadata": {"name": "not-shared", "labels": labels}})


def nvidias_plugin(clinic: Clinic) -> AbstractContextManager[None]:
    plugin = pod("nvidia-plugin", {}, schedulerName="nobody", nodeName=clinic.node)
    plugin["spec"]["containers"][0]["image"] = "nvcr.example/nvidia/k8s-device-plugin:v0.20.0"
    return created(clinic, PODS, plugin)


@contextmanager
def other_names(clinic: Clinic) -> Iterator[None]:
    clinic.cluster.set_slots(clinic.node, None)
    yield
    clinic.cluster.set_slots(clinic.node, 20)


@contextmanager
def silent_plugin(clinic: Clinic) -> Iterator[None]:
    for resource in COUNTS:
        clinic.cluster.set_slots(clinic.node, 0, resource)
    yield
    for resource in COUNTS:
        clinic.cluster.set_slots(clinic.node, 20, resource)


@contextmanager
def unreadable_register(clinic: Clinic) -> Iterator[None]:
    before = clinic.cluster.request("GET", node_path(clinic))["metadata"]["annotations"][REGISTER]
    back = {"metadata": {"annotations": {REGISTER: before}}}
    with changed(clinic, node_path(clinic), {"metadata": {"annotations": {REGISTER: "none"}}}, back):
        yield


def old_containerd(clinic: Clinic) -> AbstractContextManager[None]:
    def runtime(text: str) -> Json:
        return {"status": {"nodeInfo": {"containerRuntimeVersion": text}}}

    return changed(clinic, f"{node_path(clinic)}/status", runtime("containerd://1.6.30"), runtime("containerd://2.1.0"))


@contextmanager
def topology_without_scores(clinic: Clinic) -> Iterator[None]:
    """HAMi's plugin lists two cards of a node, without scores, and the policy goes by these."""
    cards = [{"id": f"GPU-hami-{n}", "count": 10, "devmem": 40960, "devcore": 100, "type": "A100"} for n in range(2)]
    register = json.dumps([{**card, "index": n, "health": True} for n, card in enumerate(cards)])
    name = "hami-node"
    body = {"metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": register}}}
    with settings_in(clinic, "deployments/gpuledger", card_policy="topology"), created(clinic, NODES, body):
        clinic.cluster.set_slots(name, 20)
        clinic.cluster.wait(lambda: "GPU-hami-1" in clinic.cluster.cards(), "its cards are in the ledger")
        yield
    clinic.cluster.wait(lambda: "GPU-hami-1" not in clinic.cluster.cards(), "its cards have left the ledger")


def somebody_elses_pod(clinic: Clinic) -> AbstractContextManager[None]:
    namespace = "/api/v1/namespaces/kube-system/pods"  # where the policies look at nobody
    body = pod("by-hand", {COUNT: 1}, schedulerName="default-scheduler", nodeName=clinic.node)
    body["metadata"]["namespace"] = "kube-system"
    return created(clinic, namespace, body)


def taker_of_all(clinic: Clinic) -> AbstractContextManager[None]:
    body = pod("taker", {}, schedulerName="default-scheduler", nodeName=clinic.node)
    body["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return created(clinic, PODS, body)


@contextmanager
def nobodys_pod(clinic: Clinic) -> Iterator[None]:
    namespace = "/api/v1/namespaces/kube-system/pods"  # where the policies look at nobody
    body = pod("nobodys", {COUNT: 1}, schedulerName="old-name")
    body["metadata"]["namespace"] = "kube-system"
    with created(clinic, namespace, body):
        clinic.cluster.wait(lambda: clinic.examine().findings != (), "it has waited long enough to be a finding")
        yield


ANY_CONTENT = {"openAPIV3Schema": {"type": "object"}}


@contextmanager
def karpenter_beside_a_whole_card(clinic: Clinic) -> Iterator[None]:
    """Nothing of Karpenter runs here: its kind is there, and a pod in a namespace without admission."""
    spec = {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"plural": "nodepools", "singular": "nodepool", "kind": "NodePool"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    }
    crd = {"metadata": {"name": "nodepools.karpenter.sh"}, "spec": spec}
    with created(clinic, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd):
        clinic.cluster.create(pod("whole", {COUNT: 1}))
        clinic.cluster.wait_bound("whole")
        yield
        clinic.cluster.delete("whole")
    clinic.cluster.wait(lambda: not any(clinic.cluster.holders().values()), "its card is free")


@contextmanager
def fast_clock(clinic: Clinic) -> Iterator[None]:
    later = (datetime.now(UTC) + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease = {"metadata": {"name": clinic.node}, "spec": {"holderIdentity": clinic.node, "renewTime": later}}
    with created(clinic, f"{LEASES}/kube-node-lease/leases", lease):
        yield


FAULTS: dict[str, tuple[Plant, set[str], str]] = {
    "another CRD": (another_crd, {"crd-differs"}, "x-kubernetes-validations"),
    "a policy is missing": (missing_policy, {"policy-missing"}, "it is not there"),
    "a binding is missing": (missing_binding, {"policy-unbound"}, "no ValidatingAdmissionPolicyBinding"),
    "a binding only audits": (audit_only, {"policy-unbound"}, "Audit"),
    "a binding leaves namespaces out": (policy_of_fewer_namespaces, {"policy-differs"}, "matchResources"),
    "policies of other settings": (policies_of_other_settings, {"policy-names"}, COUNT),
    "the operator may not write to the ledger": (
        no_writes_to_the_ledger,
        {"operator-permission"},
        "patch gpuallocations/",
    ),
    "agents may not create events": (agents_without_events, {"agent-permission"}, "create events in namespace default"),
    "the scheduler is dead": (dead_scheduler, {"lease-expired"}, POD),
    "the operator is not Ready": (operator_not_ready, {"operator-not-ready", "leader-not-ready"}, POD),
    "the operator does not answer": (dead_operator, {"scheduler-error"}, "connection refused"),
    "a newer scheduler": (newer_scheduler, {"scheduler-version"}, "1.40"),
    "agents with other settings": (agents_with_other_settings, {"settings-differ"}, "example.com/gpu"),
    "no agent where one is wanted": (labelled_without_agent, {"agent-absent"}, "gpuledger.dev/agent=true"),
    "an agent is not Ready": (agent_not_ready, {"agent-not-ready"}, "agent-0"),
    "GPUs that nobody lists": (gpus_of_nobody, {"node-not-shared"}, "nvidia.com/gpu.present"),
    "NVIDIA's plugin beside ours": (nvidias_plugin, {"plugins-clash"}, "default/nvidia-plugin"),
    "other names of resources": (other_names, {"node-names"}, "volcano.sh/vgpu-number"),
    "a plugin is silent": (silent_plugin, {"plugin-silent"}, "0 or absent"),
    "a register can't be read": (unreadable_register, {"register-problem"}, REGISTER),
    "a runtime without CDI": (old_containerd, {"runtime-without-cdi"}, "containerd://1.6.30"),
    "topology without scores": (topology_without_scores, {"no-scores", "settings-differ", "over-hami-permission"}, ""),
    "a scheduler that does not run": (nobodys_pod, {"pods-unserved"}, "kube-system/nobodys"),
    "another scheduler's pod": (somebody_elses_pod, {"foreign-pods"}, "kube-system/by-hand"),
    "a pod that takes all cards": (taker_of_all, {"card-access"}, "default/taker (container main sets NVIDIA_VISIBLE"),
    "Karpenter sees a pod": (karpenter_beside_a_whole_card, {"autoscaler-sees-pods"}, "admission is off in default"),
    "a node's clock is fast": (fast_clock, {"clock-skew-node"}, "ahead of"),
}
"""What is wrong -> how it is made so, the ids of what is found then, and what the first of them says."""


@pytest.mark.promise("doctor")
def test_nothing_is_found_on_a_healthy_cluster(clinic: Clinic) -> None:
    assert clinic.findings(status=0) == {}
    out, err = clinic.run(status=0)
    assert (out.splitlines()[-1], err) == ("39 checks, nothing found.", "")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_nothing_else(clinic: Clinic, fault: str) -> None:
    plant, ids, text = FAULTS[fault]
    with plant(clinic):
        found = clinic.examine().findings
        assert {each.kind.value for each in found} == ids
        assert text in " ".join(each.text for each in found)
    assert clinic.examine().findings == ()


def test_an_error_ends_with_one_and_a_warning_with_zero(clinic: Clinic) -> None:
    with agent_not_ready(clinic), gpus_of_nobody(clinic):
        printed, _ = clinic.run(status=1)
    assert "39 checks: 1 error, 1 warning." in printed
    with gpus_of_nobody(clinic):
        assert clinic.findings(status=0).keys() == {"node-not-shared"}


@pytest.mark.promise("doctor")
def test_it_reads_and_asks_and_writes_nothing(clinic: Clinic) -> None:
    offset = clinic.cluster.plane.audit_offset()
    clinic.run(status=0)
    events = clinic.cluster.plane.audit_events(offset)
    ours = [event for event in events if event.agent.startswith("gpuledger/") and event.user == "admin"]
    assert ours
    assert {event.resource for event in ours if event.verb not in ("get", "list")} == {"subjectaccessreviews"}


def test_of_an_agent_that_is_not_ready_the_log_is_read(clinic: Clinic) -> None:
    log = "2030-01-01 12:00:00,000 ERROR   gpuledger.agent: no card takes pods: no driver\n"
    state = {"name": "agent", "ready": False, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {}}}
    with agent_not_ready(clinic), kubelet_with_log(clinic, log):
        clinic.cluster.patch(f"{OURS}/pods/agent-0/status", {"status": {"containerStatuses": [state]}})
        text = clinic.findings(status=1)["agent-not-ready"]["text"]
    assert "its log: gpuledger.agent: no card takes pods: no driver" in text


def test_what_an_account_may_not_read_is_told_and_the_rest_is_checked(clinic: Clinic) -> None:
    plane = clinic.cluster.plane
    plane.kubectl("create", "serviceaccount", "looks", "-n", "default")
    plane.kubectl("create", "clusterrole", "looks", "--verb=list", "--resource=pods")
    plane.kubectl("create", "clusterrolebinding", "looks", "--clusterrole=looks", "--serviceaccount=default:looks")
    kubeconfig = plane.kubeconfig_of_service_account("default", "looks")
    settings = str(MANIFESTS / "settings.yaml")
    printed, _ = clinic.run("--kubeconfig", str(kubeconfig), "--settings", settings, "-o", "json", status=2)
    found = json.loads(printed)
    assert {each["id"] for each in found["findings"]} == {"not-checked"}
    nodes = next(each for each in found["findings"] if each["where"] == "the nodes")
    assert (nodes["mend"], "inventory" in nodes["text"]) == ("needs `list` on nodes", True)
    assert {"server-version", "operator", "scheduler-errors", "clock-here"} <= {*found["checked"]}
    with operator_not_ready(clinic):
        assert "operator-not-ready" in clinic.findings("--kubeconfig", str(kubeconfig), status=1)


def test_a_configuration_of_ones_own_is_compared_with_the_settings(clinic: Clinic, tmp_path: Path) -> None:
    file, settings = tmp_path / "scheduler.yaml", MANIFESTS / "settings.yaml"
    argv = [sys.executable, "-m", "gpuledger", "scheduler-config", "--settings", str(settings), "--output", str(file)]
    subprocess.run(argv, check=True)
    assert clinic.findings("--scheduler-config", str(file), status=0) == {}
    file.write_text(file.read_text().replace(f"- {COUNT}\n", "- example.com/gpu\n"))
    found = clinic.findings("--scheduler-config", str(file), status=1)
    assert found.keys() == {"scheduler-config"}


# As an init container: with the operator's own account, and without kubectl.


@pytest.fixture
def as_init(clinic: Clinic) -> Iterator[Callable[[int], str]]:
    """Yield what runs it, to end with a status, and returns its log. The account may read the CRD meanwhile."""
    plane = clinic.cluster.plane
    resource = "customresourcedefinitions.apiextensions.k8s.io"
    named = "--resource-name=gpuallocations.gpuledger.dev"
    plane.kubectl("create", "clusterrole", "reads-crd", "--verb=get", f"--resource={resource}", named)
    account = f"--serviceaccount={NAMESPACE}:gpuledger"
    plane.kubectl("create", "clusterrolebinding", "reads-crd", "--clusterrole=reads-crd", account)
    asked = {"verb": "get", "group": "apiextensions.k8s.io", "resource": "customresourcedefinitions"}
    wait_until_allowed(clinic, "gpuledger", {**asked, "name": "gpuallocations.gpuledger.dev"}, allowed=True)
    argv = [sys.executable, "-m", "gpuledger", "doctor", "--as-init", "--settings", str(MANIFESTS / "settings.yaml")]
    environment = {**clinic.environment, "PATH": "", "KUBECONFIG": str(clinic.cluster.installation.kubeconfig)}

    def run(status: int) -> str:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, done.stderr
        assert done.stdout == ""
        return done.stderr

    yield run
    plane.kubectl("delete", "clusterrole,clusterrolebinding", "reads-crd")


def test_as_init_it_lets_the_operator_start_on_a_healthy_cluster(as_init: Callable[[int], str]) -> None:
    assert "everything that the operator needs is there" in as_init(0)


def test_as_init_it_stops_an_operator_whose_ledger_is_another_one(
    clinic: Clinic, as_init: Callable[[int], str]
) -> None:
    with another_crd(clinic):
        assert "ERROR" in (log := as_init(1))
        assert "crd-differs" in log


def test_as_init_it_stops_an_operator_that_may_not_write(clinic: Clinic, as_init: Callable[[int], str]) -> None:
    with no_writes_to_the_ledger(clinic):
        assert "it may not patch gpuallocations/status.gpuledger.dev" in as_init(1)


def test_as_init_it_does_not_mind_what_is_no_reason_not_to_start(clinic: Clinic, as_init: Callable[[int], str]) -> None:
    with operator_not_ready(clinic), missing_policy(clinic), agent_not_ready(clinic):
        assert "everything that the operator needs is there" in as_init(0)
