"""What is left by `helm uninstall`, and who takes it over.

The last of the files, as they are run by their names: the kustomization has agents for real GPUs, of which there are
none here.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from build_control_plane import kubernetes_minor
from installation import FILLS_IN_MINOR, REPOSITORY
from kind.cluster import NAMESPACE, KindCluster, restarts, shares


def kustomization(directory: Path, version: str) -> Path:
    """Return manifests/ as docs/installing.md says for this version of Kubernetes, such as v1.36.3."""
    for name in ("crds", "manifests"):
        shutil.copytree(REPOSITORY / name, directory / name)
    if int(kubernetes_minor().partition(".")[2]) < FILLS_IN_MINOR:
        file = directory / "manifests" / "admission" / "kustomization.yaml"
        written = file.read_text()
        without = "".join(line for line in written.splitlines(keepends=True) if "mutating.yaml" not in line)
        assert without != written
        file.write_text(without)
    deployment = directory / "manifests" / "deployment.yaml"
    deployment.write_text(re.sub(r"(/kube-scheduler):v[0-9.]+", rf"\1:{version}", deployment.read_text()))
    return directory / "manifests"


def test_uninstalling_keeps_the_ledger_and_the_kustomization_takes_it_over(
    cluster: KindCluster, tmp_path: Path
) -> None:
    cluster.apply(*shares(5, "kept"))
    cluster.wait_running("app=kept", 5)
    held = {name: cards for name, cards in cluster.holders().items() if name.startswith("kept")}
    cluster.helm("uninstall", "gpuledger")

    def left() -> list[str]:
        found = cluster.objects("all,configmaps,roles,rolebindings", f"--namespace={NAMESPACE}")
        return [each["metadata"]["name"] for each in found if each["metadata"]["name"].startswith("gpuledger")]

    cluster.wait(lambda: not left(), "what Helm has made is gone")
    assert {name: cards for name, cards in cluster.holders().items() if name.startswith("kept")} == held
    assert restarts(cluster.wait_running("app=kept", 5)) == 0
    version = json.loads(cluster.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
    cluster.kubectl("apply", "--kustomize", str(kustomization(tmp_path, version)))
    cluster.kubectl("rollout", "status", "deployment/gpuledger", f"--namespace={NAMESPACE}", "--timeout=180s")
    assert {name: cards for name, cards in cluster.holders().items() if name.startswith("kept")} == held
