"""The CronJob of the regular audit: its Job as Kubernetes takes it, the command with its account, and the metrics.

No kubelet runs here: the test reports the exit status of the Job's container as one would.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.cluster import COUNT, MEMORY, PODS, Cluster, Connection, Json, RequestFailed, pod
from cluster.shared import SharedPlane
from installation import MANIFESTS, NAMESPACE, NO_KUBELET

OWN_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:gpuledger-audit"
AT, DIFFERS = "gpuledger_audit_timestamp_seconds", "gpuledger_audit_differs"


@pytest.fixture(scope="module")
def cluster(shared: SharedPlane) -> Iterator[Cluster]:
    """Yield a cluster with the CronJob, as `components: [audit]` brings it."""
    with shared.cluster(NO_KUBELET) as running:
        running.plane.kubectl("apply", "-f", str(MANIFESTS / "audit" / "rbac.yaml"))
        running.plane.kubectl("apply", "-f", str(MANIFESTS / "audit" / "cronjob.yaml"))
        yield running
        running.plane.kubectl("delete", "jobs", "--all", "-n", NAMESPACE, "--wait")
        running.plane.kubectl("delete", "-f", str(MANIFESTS / "audit" / "cronjob.yaml"))
        running.plane.kubectl("delete", "-f", str(MANIFESTS / "audit" / "rbac.yaml"))


def run_audit(cluster: Cluster, job: Json) -> subprocess.CompletedProcess[str]:
    """Run what the Job's container runs, with the token that it would have."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "gpuledger-audit"
    kubeconfig = cluster.plane.kubeconfig_of_service_account(NAMESPACE, "gpuledger-audit")
    files = ["--settings", str(cluster.installation.settings_file), "--kubeconfig", str(kubeconfig)]
    command = [sys.executable, "-m", "gpuledger", *container["args"], *files]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def started(cluster: Cluster, name: str) -> Json:
    """Start an audit as docs/operations.md says; return its pod once kube-controller-manager has made it."""
    cluster.plane.kubectl("create", "job", name, "--from=cronjob/gpuledger-audit", "-n", NAMESPACE)
    found: list[Json] = []

    def is_there() -> bool:
        path = f"{OWN_PODS}?labelSelector=batch.kubernetes.io/job-name={name}"
        found[:] = cluster.request("GET", path)["items"]
        return bool(found)

    cluster.wait(is_there, f"Job {name} has its pod")
    return found[0]


def report_exit(cluster: Cluster, audit: Json, code: int) -> None:
    """Report the end of the audit's container, as its node's kubelet would."""
    at = "2030-01-01T00:00:00Z"
    ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "startedAt": at, "finishedAt": at}
    image = {"name": "audit", "image": "gpuledger", "imageID": "", "ready": False, "restartCount": 0}
    status = {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{**image, "state": {"terminated": ended}}],
    }
    cluster.patch(f"{OWN_PODS}/{audit['metadata']['name']}/status", {"status": status})


@pytest.mark.promise("audit")
def test_the_exit_status_of_a_regular_audit_becomes_a_metric(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.create(pod("share", {COUNT: 1, MEMORY: 8000}))
    cluster.wait_bound("share")
    assert AT not in cluster.installation.metrics()
    audit = started(cluster, "agrees")
    job = cluster.request("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/agrees")
    done = run_audit(cluster, job)
    assert (done.returncode, done.stdout) == (0, "Ledger, pods and nodes agree.\n"), done.stderr
    report_exit(cluster, audit, done.returncode)
    cluster.wait(lambda: cluster.installation.metrics().get(DIFFERS) == 0, "the metric has the first audit")
    first_s = cluster.metric(AT)

    cluster.patch(f"{PODS}/share", {"metadata": {"annotations": {"gpuledger.dev/devices": "{}"}}})
    audit = started(cluster, "differs")
    done = run_audit(cluster, job)
    assert done.returncode == 1, done.stderr
    assert "annotation-differs" in done.stdout
    report_exit(cluster, audit, done.returncode)
    cluster.wait(lambda: cluster.metric(DIFFERS) == 1, "the metric has the second one, which is not retried")
    assert cluster.metric(AT) >= first_s

    cluster.plane.kubectl("delete", "jobs", "--all", "-n", NAMESPACE)
    cluster.wait(lambda: AT not in cluster.installation.metrics(), "nothing is said of audits that are gone")


def test_kustomize_gives_the_audit_the_operators_settings(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS, tmp_path / "manifests", ignore=shutil.ignore_patterns("chart"))
    shutil.copytree(MANIFESTS.parent / "crds", tmp_path / "crds")
    with (tmp_path / "manifests" / "kustomization.yaml").open("a") as file:
        file.write("components: [audit]\n")
    text = cluster.plane.kubectl("kustomize", str(tmp_path / "manifests"))
    found = {each["kind"]: each.get("spec") for each in yaml.safe_load_all(text)}
    audit, operator = (
        found["CronJob"]["jobTemplate"]["spec"]["template"]["spec"],
        found["Deployment"]["template"]["spec"],
    )
    named = [[each for each in spec["volumes"] if each["name"] == "settings"] for spec in (audit, operator)]
    assert named[0] == named[1] != [{"name": "settings", "configMap": {"name": "gpuledger-settings"}}]


def test_the_account_of_the_audit_may_write_nothing(cluster: Cluster) -> None:
    audit = Connection(cluster.plane, identity={"Impersonate-User": ACCOUNT})
    try:
        for namespace in ("default", NAMESPACE):
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectRulesReview",
                "spec": {"namespace": namespace},
            }
            answer = audit.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
            everybodys = ({"authorization.k8s.io"}, {"authentication.k8s.io"})
            rules = [each for each in answer["status"]["resourceRules"] if {*each["apiGroups"]} not in everybodys]
            assert {verb for rule in rules for verb in rule["verbs"]} <= {"get", "list"}
            assert not {"secrets", "configmaps", "*"} & {each for rule in rules for each in rule["resources"]}
        with pytest.raises(RequestFailed, match="forbidden"):
            audit.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets")
    finally:
        audit.close()
