"""Moving in over HAMi, as the preset has it: no card is given away under a pod that the ledger does not know."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.cluster import CORES, COUNT, MEMORY, PODS, Cluster, pod
from cluster.moved_over import as_hami_counts, command, moved_over
from cluster.shared import SharedPlane
from control_plane import ControlPlane
from documents.journey import Journey
from documents.pages import ROOT, commands_of
from documents.shell import Shell, for_cluster
from gpuledger.formats.kubernetes.other import ALLOCATED, condition_of
from installation import MANIFESTS

Json = dict[str, Any]
NODE, CARD = "hami-1", "GPU-hami-1-0"
T4_MIB = 16_384
REGISTER = f"{CARD},10,{T4_MIB},100,NVIDIA-Tesla T4,0,true,0,hami-core:"
ASKS = {COUNT: 1, MEMORY: 12_000, CORES: 60}
NO_CARD = "no card without pods that are not in the ledger"
PRESET = yaml.safe_load((MANIFESTS / "chart" / "presets" / "over-hami.yaml").read_text())["settings"]


QUICK = {"tell_waiting_after_s": 1.0, "release_delay_s": 2.0, "plugin_timeout_s": 2.0}


@pytest.fixture(scope="module")
def by_a_person(shared: SharedPlane) -> Iterator[Cluster]:
    with moved_over(shared.lent(), {**PRESET, **QUICK, "adopt_pods": False}) as cluster:
        yield cluster


@pytest.fixture
def by_the_operator(by_a_person: Cluster) -> Iterator[Cluster]:
    with by_a_person.other_settings(adopt_pods=PRESET["adopt_pods"]):
        yield by_a_person


@pytest.fixture
def by_the_document() -> Iterator[Cluster]:
    own = ControlPlane.run()  # the document's commands install and scale gpuledger
    with moved_over(own, {**PRESET, **QUICK, "adopt_pods": False}) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def a_node_of_hami(request: pytest.FixtureRequest) -> Iterator[None]:
    cluster: Cluster = request.getfixturevalue(next(n for n in request.fixturenames if n.startswith("by_")))
    amounts = {"cpu": 128, "memory": "1Ti", "pods": 250, COUNT: 10}
    cluster.create_node(NODE, amounts, annotations={"hami.io/node-nvidia-register": REGISTER})
    cluster.wait(lambda: CARD in cluster.cards(), "the card is in the ledger")
    wait_phase(cluster, "Ready")
    yield
    cluster.clear()


def wait_phase(cluster: Cluster, phase: str) -> None:
    cluster.wait(
        lambda: ((cluster.cards().get(CARD) or {}).get("status") or {}).get("phase") == phase, f"the card is {phase}"
    )


def marks(card: str = CARD) -> dict[str, str]:
    return {
        "hami.io/vgpu-node": NODE,
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/vgpu-devices-allocated": f"{card},NVIDIA,12000,60:;",
    }


def run(cluster: Cluster, name: str, runs: bool = True, **fields: Any) -> None:
    """Create a pod on the node with HAMi's marks; its kubelet has taken it up, if it `runs`."""
    body = pod(name, ASKS)
    body["spec"] |= {"schedulerName": "hami-scheduler", "nodeName": NODE, **fields}
    body["metadata"]["annotations"] = marks()
    cluster.create(body)
    if runs:
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        cluster.patch(f"{PODS}/{name}/status", {"status": status})


def holder_names(cluster: Cluster) -> list[str]:
    return [holder["pod"] for holder in cluster.holders().get(CARD, [])]


@pytest.mark.promise("moving over")
def test_a_second_pod_does_not_get_the_card_under_one_of_hamis(by_a_person: Cluster) -> None:
    """12,000 MiB of 16,384 run on the card; without the rule, 12,000 more were bound to it at once."""
    cluster = by_a_person
    run(cluster, "old")
    wait_phase(cluster, "Unaccounted")
    cluster.create(pod("new", ASKS))
    cluster.wait_refused("new", NO_CARD)
    cluster.wait(
        lambda: (condition_of(cluster.pod("new"), ALLOCATED) or {}).get("reason") == "Unaccounted",
        "the waiting pod is told in its condition",
    )
    assert not cluster.pod("new")["spec"].get("nodeName")
    cluster.patch(f"{PODS}/old/status", {"status": {"phase": "Succeeded"}})
    cluster.wait_bound("new")
    assert holder_names(cluster) == ["new"]


def test_pods_that_were_bound_while_the_operator_was_away_are_looked_at_first(by_a_person: Cluster) -> None:
    cluster = by_a_person
    cluster.installation.kill_operator()
    try:
        run(cluster, "old")
        cluster.create(pod("new", ASKS))
    finally:
        cluster.installation.start_operator()
    cluster.wait_refused("new", NO_CARD)
    wait_phase(cluster, "Unaccounted")
    assert holder_names(cluster) == []


def test_a_pod_that_a_user_binds_by_hand_with_forged_marks_closes_nothing(by_a_person: Cluster) -> None:
    """No kubelet has taken it up: the API server lets nobody write that in a new pod."""
    cluster = by_a_person
    body = pod("hostile", ASKS)
    body["spec"] |= {"schedulerName": "hami-scheduler", "nodeName": NODE}
    body["metadata"]["annotations"] = marks()
    condition = {"type": "PodScheduled", "status": "True"}
    body["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [condition]}
    cluster.create(body)
    cluster.create(pod("honest", ASKS))
    cluster.wait_bound("honest")
    assert holder_names(cluster) == ["honest"]


def test_with_the_preset_the_share_is_entered_and_what_is_left_is_given_out(by_the_operator: Cluster) -> None:
    cluster = by_the_operator
    run(cluster, "old")
    cluster.create(pod("large", ASKS), pod("small", {COUNT: 1, MEMORY: 4_000, CORES: 30}))
    cluster.wait_bound("small")
    assert sorted(holder_names(cluster)) == ["old", "small"]
    cluster.wait_refused("large", "no card with 12000 MiB free")
    wait_phase(cluster, "Ready")


def found(cluster: Cluster, name: str, *arguments: str, status: int) -> list[Json]:
    """Return what one of our commands prints as JSON; it ends with this status."""
    done = command(cluster, name, *arguments)
    assert done.returncode == status, (done.stdout, done.stderr)
    return list(json.loads(done.stdout))


def a_deployment(namespace: str, name: str) -> Json:
    """Return what stands in for another system's scheduler: there is nothing in it."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": name, "image": "none"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


HAMIS_CHART = (
    "helm upgrade hami hami-charts/hami -n kube-system --reset-then-reuse-values "
    "--set scheduler.admissionWebhook.enabled="
)
INSTEAD = {
    # HAMi's chart is not here: its webhook's configuration and its Deployment are stand-ins.
    f"{HAMIS_CHART}false": "kubectl delete mutatingwebhookconfiguration hami-webhook",
    f"{HAMIS_CHART}true": "kubectl create -f hami-webhook.yaml",
    "kubectl get mutatingwebhookconfiguration hami-webhook": "! kubectl get mutatingwebhookconfiguration hami-webhook",
}


def hamis_cluster(cluster: Cluster, directory: Path) -> Journey:
    """Install the stand-ins of HAMi and Volcano, and return a shell of who administers the cluster."""
    kubectl = cluster.plane.kubectl
    kubectl("create", "namespace", "volcano-system")
    for namespace, name in (("kube-system", "hami-scheduler"), ("volcano-system", "volcano-scheduler")):
        kubectl("create", "-f", "-", stdin=json.dumps(a_deployment(namespace, name)))
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    (directory / "hami-webhook.yaml").write_text(yaml.safe_dump({**kind, "metadata": {"name": "hami-webhook"}}))
    kubectl("create", "-f", str(directory / "hami-webhook.yaml"))
    config = "--from-literal=device-config.yaml=nvidia: {resourceCountName: volcano.sh/vgpu-number}"
    kubectl("create", "configmap", "volcano-vgpu-device-config", "-n", "kube-system", config)
    (directory / "manifests").symlink_to(MANIFESTS)
    settings = {"GPULEDGER_SETTINGS": str(cluster.installation.settings_file)}
    return Journey(Shell(directory, for_cluster(cluster.plane.kubeconfig, directory) | settings), INSTEAD)


def test_the_way_in_and_back_to_hami(by_the_document: Cluster, tmp_path: Path) -> None:
    """By the commands of docs/moving-over.md, in its order: no step leaves a pod uncounted, on either side."""
    cluster, journey = by_the_document, hamis_cluster(by_the_document, tmp_path)
    run(cluster, "old")
    cluster.installation.kill_operator()

    def installed() -> None:
        cluster.installation.start_operator()
        wait_phase(cluster, "Unaccounted")
        (lack,) = found(cluster, "audit", status=1)
        assert (lack["kind"], lack["pod"]) == ("not-entered", "default/old")
        told = "the ledger has no GPUs for this pod"
        cluster.wait(lambda: any(told in said for said in cluster.messages("old")), "its owner is told, too")

    def shown() -> None:
        assert holder_names(cluster) == []

    def entered() -> None:
        assert holder_names(cluster) == ["old"]
        wait_phase(cluster, "Ready")

    def moved_in() -> None:
        cluster.create(pod("beside", {COUNT: 1, MEMORY: 4_000, CORES: 30}))
        cluster.wait_bound("beside")
        assert sorted(holder_names(cluster)) == ["beside", "old"]

    after = {
        "kubectl apply -k manifests/over-hami": installed,
        "gpuledger migrate --dry-run": shown,
        "gpuledger migrate": entered,
        "gpuledger audit": moved_in,
        "kubectl scale deployment -n gpuledger-system gpuledger --replicas=0": cluster.installation.kill_operator,
    }
    try:
        for each in commands_of(ROOT / "docs" / "moving-over.md"):
            journey.run(each)
            after.pop(each.text, lambda: None)()
        assert not after, "the document does not show these commands any more"
        assert as_hami_counts(cluster) == {CARD: 16_000}
    finally:
        if record := os.environ.get("RECORD_JOURNEY"):
            Path(record).write_text("".join(f"$ {c.text}\n{printed}\n" for c, printed in journey.done))
        if not (cluster.installation.operator and cluster.installation.operator.alive):
            cluster.installation.start_operator()
