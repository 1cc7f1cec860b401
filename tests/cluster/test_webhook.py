"""The webhook in the operator, on a real API server that has none of our policies.

It holds for a whole cluster, so this one is not shared with other tests. Most requests are dry runs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.cluster import COUNT, DEVICES, MEMORY, Cluster, Connection, RequestFailed, container, devices, pod
from cluster.dry_runs import as_user, bare, create
from control_plane import ControlPlane, ControlPlaneError, free_port
from fakes.admission_cases import ACCEPTED, COUNTED, FOREIGN, HAMI_TOLD, REFUSED, VOLCANO_TOLD
from fakes.objects import DIALECTS
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.webhook import SERVICE
from gpuledger.formats.dialects.request import pod_request
from gpuledger.model.errors import BadInput
from installation import NAMESPACE, NO_KUBELET, REPOSITORY, USER, Installation

Json = dict[str, Any]

LABEL = "gpuledger.dev/managed"
TAINT = {"key": "example.com/gpus", "value": "ours", "effect": "NoSchedule"}
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))


@dataclass
class Webhook:
    """An operator that serves the webhook, and the configuration by which the API server finds it."""

    plane: ControlPlane
    name: str = ""
    replicated: bool = False

    def __post_init__(self) -> None:
        certificate, key = map(str, self.plane.serving_files)
        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        settings = {
            "hide_from_autoscalers": False,  # of which test_hiding.py is
            **NO_KUBELET,
            "webhook_host": "127.0.0.1",
            "webhook_port": port,
            "webhook_cert_file": certificate,
            "webhook_key_file": key,
            "node_taint": f"{TAINT['key']}={TAINT['value']}:{TAINT['effect']}",
        }
        self.installation = Installation(self.plane, settings, self.name, self.replicated)

    def configure(self) -> None:
        """Tell the API server of this one, and of no other."""
        certificate, _ = self.plane.serving_files
        files = ["--settings", str(self.installation.settings_file), "--ca-file", str(certificate)]
        command = [sys.executable, "-m", "gpuledger", "webhook-config", *files, "--url", self.url]
        printed = subprocess.run(command, check=True, capture_output=True, text=True)
        self.plane.kubectl("apply", "-f", "-", stdin=printed.stdout)


@pytest.fixture(scope="module")
def webhook() -> Iterator[Webhook]:
    with ControlPlane.run() as plane:  # with the webhook, which all requests wait for
        serving = Webhook(plane)
        serving.installation.start()
        for name in ("ignored", "claims-not"):
            plane.kubectl("create", "namespace", name)
        plane.kubectl("label", "namespace", "ignored", "gpuledger.dev/ignore=true")
        plane.kubectl("label", "namespace", "claims-not", "gpuledger.dev/ignore=false")
        serving.configure()
        yield serving


@pytest.fixture(scope="module")
def cluster(webhook: Webhook) -> Iterator[Cluster]:
    """Yield a cluster in which all parts of the configuration are in force."""
    running = Cluster(webhook.plane, webhook.installation)
    wait_until_in_force(running)
    yield running
    running.close()


@pytest.fixture(autouse=True)
def _nothing_stays(cluster: Cluster) -> Iterator[None]:
    """Leave no pods to the next test, however this one ends."""
    yield
    if cluster.pods():
        cluster.clear()


def wait_until_in_force(cluster: Cluster) -> None:
    user = as_user(cluster.plane, "user")
    cluster.wait(lambda: "labels" in attempt(user, bare({COUNT: 1})).get("metadata", {}), "pods are filled in")
    for body in (
        bare({COUNT: 1025}),
        bare({}, annotations={DEVICES: "{}"}),
        bare({}, annotations={HAMI_TOLD: ""}),
    ):
        cluster.wait(lambda body=body: not attempt(user, body), "the webhook refuses")  # type: ignore[misc]
    user.close()


def attempt(user: Connection, body: Json) -> Json:
    """Return the pod, or nothing if it is refused."""
    try:
        return create(user, body)
    except RequestFailed:
        return {}


@pytest.fixture
def user(cluster: Cluster) -> Iterator[Connection]:
    connection = as_user(cluster.plane, "user")
    yield connection
    connection.close()


@contextmanager
def refused(webhook: str, sentence: str) -> Iterator[None]:
    """Expect that this webhook refuses, and that what the user reads ends like this."""
    denial = f'403: admission webhook "{webhook}.gpuledger.dev" denied the request: '
    with pytest.raises(RequestFailed, match=rf"^{re.escape(denial)}.*{re.escape(sentence)}$"):
        yield


# What is filled in.


def test_a_pod_that_names_only_memory_gets_scheduler_label_count_and_toleration(user: Connection) -> None:
    stored = create(user, bare({MEMORY: 4000}))
    assert stored["spec"]["schedulerName"] == "gpuledger"
    assert stored["metadata"]["labels"] == {LABEL: "true"}
    amounts = {MEMORY: "4k", COUNT: "1"}
    assert stored["spec"]["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert {"operator": "Equal", **TAINT} in stored["spec"]["tolerations"]


@pytest.mark.parametrize(("limits", "count"), COUNTED)
def test_the_count_that_is_added_is_of_the_same_words(user: Connection, limits: Json, count: str) -> None:
    (main,) = create(user, bare(limits))["spec"]["containers"]
    assert main["resources"]["limits"].keys() == {*limits, count}
    assert main["resources"]["limits"][count] == main["resources"]["requests"][count] == "1"


def test_init_containers_get_their_count_and_a_sidecar_that_asks_makes_the_pod_ours(user: Connection) -> None:
    body = bare({})
    body["spec"]["initContainers"] = [container({}, "early"), container({MEMORY: 5}, "late", restartPolicy="Always")]
    spec = create(user, body)["spec"]
    assert spec["schedulerName"] == "gpuledger"
    assert [c["resources"].get("limits") for c in spec["initContainers"]] == [None, {MEMORY: "5", COUNT: "1"}]
    assert spec["containers"][0]["resources"] == {}


def test_other_labels_stay(user: Connection) -> None:
    body = bare({COUNT: 3})
    body["metadata"]["labels"] = {"app": "a"}
    assert create(user, body)["metadata"]["labels"] == {"app": "a", LABEL: "true"}


@pytest.mark.parametrize("limits", [{}, {"cpu": 1}, {COUNT: 0}, {"nvidia.com/priority": 1}, {"example.com/gpu": 1}])
def test_a_pod_that_asks_for_no_gpu_stays_as_it_is(user: Connection, limits: Json) -> None:
    stored = create(user, bare(limits))
    assert stored["spec"]["schedulerName"] == "default-scheduler"
    assert "labels" not in stored["metadata"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_are_accepted_with_their_scheduler_named_or_not(user: Connection, file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        spec = document["spec"].get("template", document)["spec"]
        for scheduler in ("gpuledger", "default-scheduler"):
            body: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "example"}, "spec": dict(spec)}
            body["spec"]["schedulerName"] = scheduler
            assert create(user, body)["spec"]["schedulerName"] == "gpuledger"


def test_a_pod_is_filled_in_and_placed_and_kopf_writes_nothing_for_it(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    offset = cluster.plane.audit_offset()
    cluster.create(bare({MEMORY: 30_000}))
    (placed,) = cluster.wait_bound("bare")
    assert devices(placed) == {"main": [{"uuid": node.cards[0].uuid, "memoryMiB": 30_000, "cores": 0}]}
    cluster.settle()
    writes = cluster.our_writes(offset, ["pods", *CONFIGURATIONS])
    assert [(write.resource, write.subresource) for write in writes] == [("pods", "binding")]
    cluster.clear()


# What is refused.


@pytest.mark.parametrize("limits", [limits for limits, _ in REFUSED], ids=json.dumps)
def test_what_the_operator_refuses_is_refused_in_its_words(user: Connection, limits: Json) -> None:
    body = bare(dict(sorted(limits.items())))  # the API server's order
    with pytest.raises(BadInput) as of_the_operator:
        pod_request(body, DIALECTS)
    with refused("requests", str(of_the_operator.value)):
        create(user, body)


@pytest.mark.parametrize("limits", ACCEPTED, ids=json.dumps)
def test_what_the_operator_accepts_is_accepted(user: Connection, limits: Json) -> None:
    create(user, bare(limits))


def test_kubectl_shows_the_sentence(cluster: Cluster) -> None:
    sentence = (
        f"container main, {MEMORY}: 4Gi has a unit of bytes; write a plain whole number (a number of MiB per card)"
    )
    denial = f'admission webhook "requests.gpuledger.dev" denied the request: {sentence}'
    with pytest.raises(ControlPlaneError, match=re.escape(denial) + "$"):
        cluster.plane.kubectl("create", "-f", "-", stdin=json.dumps(bare({MEMORY: "4Gi"})))


def test_another_scheduler_is_refused_for_pods_that_ask_for_gpus(user: Connection) -> None:
    sentence = "its scheduler volcano does not know who has them: write spec.schedulerName: gpuledger"
    with refused("requests", sentence):
        create(user, pod("pod", {COUNT: 1}, schedulerName="volcano"))
    create(user, pod("pod", {COUNT: 0}, schedulerName="volcano"))
    create(user, pod("pod", {"cpu": 1}, schedulerName="volcano"))


def test_a_node_by_hand_is_refused_for_pods_that_ask_for_gpus(user: Connection) -> None:
    with refused("requests", "to say which nodes it may use, write spec.nodeSelector"):
        create(user, bare({COUNT: 1}, nodeName="node"))
    create(user, bare({"cpu": 1}, nodeName="node"))


@pytest.mark.parametrize("namespace", ["ignored", "kube-system", NAMESPACE])
def test_pods_of_an_exempt_namespace_are_left_to_other_schedulers(user: Connection, namespace: str) -> None:
    body = bare({COUNT: 1, MEMORY: "4Gi"}, nodeName="node", annotations={HAMI_TOLD: "", VOLCANO_TOLD: ""})
    # The operator's namespace allows only pods that could do no harm.
    body["spec"]["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    harmless = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    body["spec"]["containers"][0]["securityContext"] = harmless
    stored = create(user, body, namespace)
    assert stored["spec"]["schedulerName"] == "default-scheduler"
    assert "labels" not in stored["metadata"]


def test_a_namespace_is_ignored_only_if_its_label_says_true(user: Connection) -> None:
    assert create(user, bare({COUNT: 1}), "claims-not")["spec"]["schedulerName"] == "gpuledger"


@pytest.mark.parametrize("namespace", ["default", "ignored", "kube-system"])
def test_nobody_else_creates_a_pod_with_our_annotation_anywhere(user: Connection, namespace: str) -> None:
    with refused("devices", "leave it out of what you create, and as it is in what you change"):
        create(user, bare({}, annotations={DEVICES: "{}"}), namespace)


@pytest.mark.parametrize("name", FOREIGN)
def test_nobody_else_creates_a_pod_that_steers_device_plugins(user: Connection, name: str) -> None:
    with refused("foreign-devices", f"leave out the annotation {name}"):
        create(user, bare({}, annotations={name: "1", "team": "blue"}))


def test_our_account_may_create_such_a_pod(cluster: Cluster) -> None:
    ours = as_user(cluster.plane, USER)
    create(ours, bare({}, annotations={DEVICES: "{}", HAMI_TOLD: ""}))
    ours.close()


# Who answers.


def test_while_nobody_answers_pods_with_gpus_are_refused_and_all_others_created(
    webhook: Webhook, cluster: Cluster, user: Connection
) -> None:
    """That the others are created shows that they are never sent."""
    webhook.installation.kill_operator()
    try:
        with pytest.raises(RequestFailed, match=r'^500: .*failed calling webhook "pods\.gpuledger\.dev"'):
            create(user, bare({COUNT: 1}))
        for limits in ({}, {"cpu": 1}, {"example.com/gpu": 1}):
            create(user, bare(limits, annotations={"team": "blue"}))
        create(user, bare({COUNT: 1}), "ignored")
        create(user, bare({}), "kube-system")
    finally:
        webhook.installation.start_operator()
    cluster.wait(lambda: bool(attempt(user, bare({COUNT: 1}))), "it answers again")


def test_a_passive_replica_answers(webhook: Webhook, cluster: Cluster, user: Connection) -> None:
    passive = Webhook(webhook.plane, "passive", replicated=True)
    passive.installation.install()
    program = passive.installation.start_operator()  # without its kube-scheduler, so it never gets the Lease
    webhook.installation.kill_operator()
    try:
        passive.configure()
        cluster.wait(lambda: bool(attempt(user, bare({COUNT: 1}))), "the API server asks the passive replica")
        assert create(user, bare({MEMORY: 1}))["spec"]["schedulerName"] == "gpuledger"
        with refused("requests", "(a number of MiB per card)"):
            create(user, bare({MEMORY: "4Gi"}))
        assert "ready to take over" in program.log_text()
        assert "ready\n" not in program.log_text()
    finally:
        passive.installation.kill_operator()
        webhook.installation.start_operator()
        webhook.configure()
    cluster.wait(lambda: bool(attempt(user, bare({COUNT: 1}))), "the first one is asked again")


# The files.


def test_the_component_gives_the_operator_its_certificate_and_a_service(plane: ControlPlane, tmp_path: Path) -> None:
    for folder in ("manifests", "crds"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    with (tmp_path / "manifests" / "kustomization.yaml").open("a") as file:
        file.write("components: [webhook]\n")
    text = plane.kubectl("kustomize", str(tmp_path / "manifests"))
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}
    objects = [found["Service", SERVICE], found["Deployment", "gpuledger"], found["NetworkPolicy", "gpuledger"]]
    service, deployment = objects[0]["spec"], objects[1]["spec"]["template"]
    operator = next(c for c in deployment["spec"]["containers"] if c["name"] == "operator")
    assert {port["name"] for port in operator["ports"]} == {"health", "explain", service["ports"][0]["targetPort"]}
    assert service["selector"].items() <= deployment["metadata"]["labels"].items()
    mounted = {mount["name"]: mount["mountPath"] for mount in operator["volumeMounts"]}
    assert Settings().webhook_cert_file == f"{mounted['webhook']}/tls.crt"
    assert Settings().webhook_key_file == f"{mounted['webhook']}/tls.key"
    assert mounted.keys() <= {volume["name"] for volume in deployment["spec"]["volumes"]}
    (port,) = (each["containerPort"] for each in operator["ports"] if each["name"] == "webhook")
    assert {"ports": [{"port": port}]} in objects[2]["spec"]["ingress"]  # without `from`: for everybody
    # A cluster of this test run has the namespace only where gpuledger is installed.
    plane.kubectl("create", "namespace", "gpuledger-system", check=False)
    for each in objects:
        plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(each))
