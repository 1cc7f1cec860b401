"""The chart on a real API server: each preset is accepted, and a release comes, changes and goes without the ledger."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_control_plane import ensure_binaries
from chart import DOCUMENT
from cluster.cluster import ALLOCATIONS, COUNT, DEADLINE_S, Connection, RequestFailed
from cluster.dry_runs import as_user, bare, create
from cluster.kubernetes import needs_filling_in
from control_plane import ControlPlane, ControlPlaneError
from gpuledger.configuration.settings import Settings
from manifests.helm import CHART, NAMESPACE, PRESETS, Helm, own_homes, preset, the_helm

pytestmark = pytest.mark.timeout(1200)  # a first build of Helm takes minutes

Json = dict[str, Any]
CRD = "gpuallocations.gpuledger.dev"
RESERVATIONS = "gpureservations.gpuledger.dev"
USAGES = "gpuusages.gpuledger.dev"
ROOT = CHART.parent
DELETE_TIMEOUT_S = 90.0
CARD = {
    "apiVersion": "gpuledger.dev/v1alpha1",
    "kind": "GPUAllocation",
    "metadata": {"name": "gpu-1"},
    "spec": {
        "uuid": "GPU-1",
        "nodeName": "node-1",
        "index": 0,
        "vendor": "nvidia",
        "model": "A100",
        "mode": "none",
        "numaNode": 0,
        "healthy": True,
        "capacity": {"memoryMiB": 40960, "cores": 100, "number": 10},
    },
}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Return a control plane on which nobody else installs anything."""
    with ControlPlane.run() as plane:  # helm installs and uninstalls it
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.kubectl("create", "namespace", "restricted")
        plane.kubectl("label", "namespace", "restricted", "pod-security.kubernetes.io/enforce=restricted")
        yield plane


@pytest.fixture
def user(plane: ControlPlane) -> Iterator[Connection]:
    """Return somebody who may create pods, and is no account of ours."""
    connection = as_user(plane, "somebody")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def helm() -> Helm:
    return the_helm()


class Release:
    """A release of the chart, named gpus."""

    def __init__(self, plane: ControlPlane, helm: Helm) -> None:
        self.plane = plane
        self._helm = helm.program

    def run(self, verb: str, *arguments: str, **values: object) -> tuple[int, str]:
        """Run Helm on the cluster; return its status and all that it says."""
        chart = [str(CHART)] if verb in ("install", "upgrade") else []
        place = ["--kubeconfig", str(self.plane.kubeconfig), "--namespace", NAMESPACE]
        command = [str(self._helm), verb, "gpus", *chart, *place, *arguments, *Helm.flags(values)]
        environment = {**os.environ, **own_homes(self.plane.directory)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def must(self, verb: str, *arguments: str, **values: object) -> str:
        """Do the same, of what has to succeed."""
        status, text = self.run(verb, *arguments, **values)
        assert status == 0, text
        return text

    def get(self, kind: str, name: str) -> Json:
        return dict(json.loads(self.plane.kubectl("get", kind, name, "-n", NAMESPACE, "-o", "json")))


def delete_definition(plane: ControlPlane) -> None:
    """Delete our CRDs, those that there are, with all that is in them.

    An API server with much to do, that is given a CRD and loses it again within seconds, now and then never comes to
    the end of emptying it. So its finalizer is taken off where that takes long: it is empty.
    """
    for name in (CRD, RESERVATIONS, USAGES):
        with contextlib.suppress(ControlPlaneError):  # there is no such kind
            plane.kubectl("delete", name.partition(".")[0], "--all", "--all-namespaces", timeout_s=DELETE_TIMEOUT_S)
        plane.kubectl("delete", "crd", name, "--ignore-not-found", "--wait=false")
        try:
            plane.kubectl("wait", "--for=delete", f"crd/{name}", "--timeout=60s", timeout_s=DELETE_TIMEOUT_S)
        except ControlPlaneError:
            with contextlib.suppress(ControlPlaneError):  # it has come to the end just now
                plane.kubectl("patch", "crd", name, "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')


@pytest.fixture
def release(plane: ControlPlane, helm: Helm) -> Iterator[Release]:
    """Return a release that is not installed yet, and remove what is left of it."""
    release = Release(plane, helm)
    yield release
    release.run("uninstall", "--ignore-not-found")
    delete_definition(plane)


def commands(document: str) -> list[str]:
    """Return the commands of a document, in their order; what stands for more of them left out."""
    blocks = re.findall(r"^```console\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").replace(" ...", "").splitlines()
    return [" ".join(line.split()) for line in lines]


def server_version(plane: ControlPlane) -> str:
    return str(json.loads(plane.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"])


# Accepted as they are.


MODES = ("auto", "webhook", "validating", "none")


@pytest.mark.promise("chart")
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=() if mode in MODES[number : number + 1] else pytest.mark.long)
        for number, name in enumerate(PRESETS)
        for mode in MODES
    ],
)
def test_the_api_server_takes_each_object_of_a_preset(plane: ControlPlane, helm: Helm, name: str, mode: str) -> None:
    texts = helm.texts(preset(name), kubernetes=server_version(plane), admission={"mode": mode})
    answers = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin="---\n".join(texts.values())).splitlines()
    objects = [each for text in texts.values() for each in yaml.safe_load_all(text)]
    assert len(answers) == len(objects) >= 15
    assert [each for each in answers if not each.endswith(" created (server dry run)")] == []


def test_the_api_server_takes_whoever_is_let_in_to_the_metrics(plane: ControlPlane, helm: Helm) -> None:
    key = {"key": "team", "operator": "In", "values": ["metrics"]}
    everybody: list[Json] = [
        {"namespaceSelector": {}},
        {"podSelector": {"matchLabels": {"app": "prometheus"}}, "namespaceSelector": {"matchExpressions": [key]}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        {"ipBlock": {"cidr": "fd00::/8"}},
    ]
    for scrapers in (everybody, []):
        values = {"networkPolicy": {"scrapers": scrapers}, "admission": {"mode": "webhook"}}
        texts = helm.texts(kubernetes=server_version(plane), **values)
        policies = "---\n".join(text for name, text in texts.items() if name.endswith("network_policy.yaml"))
        answers = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=policies).splitlines()
        assert answers == [
            f"networkpolicy.networking.k8s.io/{name} created (server dry run)"
            for name in ("gpuledger-agent", "gpuledger")
        ]


@needs_filling_in
def test_filled_in_policies_are_expressions_that_the_api_server_compiles(plane: ControlPlane, helm: Helm) -> None:
    settings = {
        "resource_count": "example.com/gpu",
        "volcano_memory": "example.com/mem",
        "scheduler_name": "ours",
        "extra_scheduler_names": ["volcano"],
        "node_taint": "gpu=ours:NoExecute",
        "queue_words": True,
        "sum_models": ["Tesla T4=15360", *(f"NVIDIA A100-SXM4-{size}GB=81920" for size in (40, 64, 80, 96))],
    }
    texts = helm.texts(kubernetes=server_version(plane), settings=settings)
    policies = "---\n".join(text for name, text in texts.items() if name.startswith("admission/"))
    answers = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=policies).splitlines()
    assert len(answers) == policies.count("\nkind: ") >= 26


@pytest.mark.parametrize("mode", [pytest.param("policies", marks=needs_filling_in), "webhook"])
def test_operator_and_test_keep_to_the_restricted_profile(
    plane: ControlPlane, helm: Helm, user: Connection, mode: str
) -> None:
    objects = helm.objects(kubernetes=server_version(plane), admission={"mode": mode})
    template = objects["Deployment", "gpuledger"]["spec"]["template"]
    test = objects["Pod", "gpuledger-test"]
    for name, spec in {"operator": template["spec"], "test": test["spec"]}.items():
        create(user, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, "restricted")


def test_the_agent_does_not_and_needs_the_namespaces_label(helm: Helm, user: Connection) -> None:
    spec = helm.objects()["DaemonSet", "gpuledger-agent"]["spec"]["template"]["spec"]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"}, "spec": spec}
    with pytest.raises(RequestFailed, match="violates PodSecurity"):
        create(user, body, "restricted")
    enforced = helm.objects(namespace={"create": True})["Namespace", NAMESPACE]["metadata"]["labels"]
    assert enforced["pod-security.kubernetes.io/enforce"] == "privileged"


# A release.


@needs_filling_in
def test_a_release_takes_pods_of_labelled_namespaces_by_the_names_of_its_settings(
    plane: ControlPlane, user: Connection, release: Release
) -> None:
    plane.kubectl("create", "namespace", "team")
    plane.kubectl("label", "namespace", "team", "gpuledger.dev/admission=true")
    settings = {"resource_memory": "example.com/mem", "node_taint": "gpu=ours:NoSchedule"}
    text = release.must("install", settings=settings)
    assert "policies of the API server send new pods that request GPUs in labelled namespaces to gpuledger" in text

    def filled_in() -> Json | None:
        try:
            spec: Json = create(user, bare({"example.com/mem": 4000}), "team")["spec"]
        except RequestFailed:  # the policy that checks is in force, and that which fills in is not yet
            return None
        return spec if spec["schedulerName"] == "gpuledger" else None

    deadline, spec = time.monotonic() + DEADLINE_S, None
    while spec is None:  # a policy is in force some seconds after it was applied
        assert time.monotonic() < deadline
        spec = filled_in()
    assert spec["containers"][0]["resources"]["limits"][COUNT] == "1"
    assert [each["value"] for each in spec["tolerations"] if each.get("key") == "gpu"] == ["ours"]
    for amounts, namespace in (({"nvidia.com/gpumem": 4000}, "team"), ({"example.com/mem": 4000}, "default")):
        assert create(user, bare(amounts), namespace)["spec"]["schedulerName"] == "default-scheduler"


def test_a_changed_setting_reaches_the_pods_by_an_upgrade(release: Release) -> None:
    def now() -> tuple[str, str]:
        settings = release.get("configmap", "gpuledger-settings")["data"]["settings.yaml"]
        pods = release.get("deployment", "gpuledger")["spec"]["template"]["metadata"]
        return yaml.safe_load(settings)["node_policy"], pods["annotations"]["gpuledger.dev/settings"]

    release.must("install")
    (policy, before), again = now(), release.must("upgrade")
    assert (policy, before) == now(), again
    release.must("upgrade", settings={"node_policy": "spread"})
    policy, after = now()
    assert (policy, after != before) == ("spread", True)
    release.must("rollback", "1")
    assert now() == (Settings().node_policy, before)


def test_the_ledger_outlives_the_release_and_the_next_one_takes_it_over(
    plane: ControlPlane, user: Connection, release: Release
) -> None:
    release.must("install")
    plane.wait_established(CRD)
    user.request("POST", ALLOCATIONS, CARD)
    release.must("uninstall")
    assert user.request("GET", f"{ALLOCATIONS}/gpu-1")["spec"]["uuid"] == "GPU-1"
    release.must("install")
    assert user.request("GET", f"{ALLOCATIONS}/gpu-1")["spec"]["uuid"] == "GPU-1"


def test_an_upgrade_brings_the_chart_s_definition_of_the_ledger(plane: ControlPlane, release: Release) -> None:
    """As Helm's own folder for definitions would not."""
    release.must("install")
    column = '[{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns/0"}]'

    def columns() -> int:
        return len(release.get("crd", CRD)["spec"]["versions"][0]["additionalPrinterColumns"])

    before = columns()
    plane.kubectl("patch", "crd", CRD, "--type=json", "-p", column)
    assert columns() == before - 1
    release.must("upgrade", "--force-conflicts")
    assert columns() == before


def test_the_webhooks_certificate_stays_the_same(release: Release) -> None:
    release.must("install", admission={"mode": "webhook"})
    before = release.get("secret", "gpuledger-webhook-generated")["data"]
    release.must("upgrade", admission={"mode": "webhook"}, settings={"node_policy": "spread"})
    assert release.get("secret", "gpuledger-webhook-generated")["data"] == before
    webhooks = release.get("mutatingwebhookconfiguration", "gpuledger")["webhooks"]
    assert {each["clientConfig"]["caBundle"] for each in webhooks} == {before["ca.crt"]}


@needs_filling_in
def test_a_cluster_that_kustomize_installed_can_move_to_helm(plane: ControlPlane, release: Release) -> None:
    plane.kubectl("apply", "-k", str(ROOT))
    status, text = release.run("install")
    assert status != 0
    assert "invalid ownership metadata" in text
    release.must("install", "--take-ownership", "--force-conflicts")
    labels = release.get("deployment", "gpuledger")["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "Helm"


# The document.


@needs_filling_in
def test_each_command_of_the_document_works(plane: ControlPlane, helm: Helm, tmp_path: Path) -> None:
    (tmp_path / "manifests").symlink_to(ROOT)
    (tmp_path / "settings.yaml").write_text("admission_namespaces: labelled\n")
    (tmp_path / "helm").symlink_to(helm.program)
    path = os.pathsep.join(
        [str(tmp_path), str(Path(sys.executable).parent), str(ensure_binaries()), os.environ["PATH"]]
    )
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(plane.kubeconfig), "HELM_CACHE_HOME": str(tmp_path)}

    def run(command: str) -> None:
        shell = ["bash", "-euc", command]
        done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpus", "labels": {"gpuledger.dev/agent": "true"}}}
    plane.kubectl("create", "-f", "-", stdin=json.dumps(node))
    found = commands(DOCUMENT.read_text())
    assert len(found) == 8
    for command in found:
        if "--take-ownership" in command:
            run("helm uninstall gpuledger --namespace gpuledger-system")
            run("kubectl apply -k manifests/")
        run(command)
    run("helm uninstall gpuledger --namespace gpuledger-system")
    delete_definition(plane)
