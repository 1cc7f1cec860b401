"""docs/first-day.md on two real nodes: each command as it stands there, and what it prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from build_steps import BuildError
from cluster.kubernetes import needs_filling_in
from control_plane import ControlPlaneError
from documents.journey import Journey
from documents.pages import ROOT, commands_of
from documents.shell import Shell, for_cluster
from fakes.nvml import fake_nvml
from manifests.helm import own_homes, the_helm
from node.helm_release import values_for
from node.pod_cluster import PodCluster, require_pods

pytestmark = pytest.mark.timeout(900)

DOCUMENT = ROOT / "docs" / "first-day.md"
WAYS = ("kustomize", "Helm")


@pytest.fixture(scope="module")
def empty() -> Iterator[PodCluster]:
    """Yield a cluster without gpuledger, whose nodes have the images and the stand-in of the driver."""
    require_pods()
    fake_nvml.library_directory()
    try:
        with PodCluster.running() as cluster:
            cluster.bring_images()
            cluster.bring_public_images()
            cluster.show_cards()
            yield cluster
    except (ControlPlaneError, BuildError) as error:
        pytest.fail(f"The cluster does not start.\n{error}", pytrace=False)


def a_journey(cluster: PodCluster, directory: Path) -> Journey:
    """Return a shell beside the manifests as they are adapted to this cluster: images and driver."""
    cluster.write_overlay()
    link = cluster.overlay / "chart"
    link.unlink(missing_ok=True)
    link.symlink_to(ROOT / "manifests" / "chart")
    (directory / "manifests").symlink_to(cluster.overlay)
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / "values.yaml").write_text(yaml.safe_dump(values_for()))
    (directory / "helm").symlink_to(the_helm().program)
    variables = for_cluster(cluster.plane.kubeconfig, directory) | own_homes(directory)
    return Journey(Shell(directory, variables))


@needs_filling_in
@pytest.mark.parametrize("way", ["kustomize", pytest.param("Helm", marks=pytest.mark.long)])
def test_a_teams_first_day_goes_as_the_document_says(empty: PodCluster, tmp_path: Path, way: str) -> None:
    journey = a_journey(empty, tmp_path)
    others = tuple(f" with {other}" for other in WAYS if other != way)
    try:
        for command in commands_of(DOCUMENT):
            if not command.section.endswith(others):
                journey.run(command)
    finally:
        if record := os.environ.get("RECORD_JOURNEY"):
            text = "".join(f"## {c.section}\n$ {c.text}\n{printed}\n" for c, printed in journey.done)
            Path(f"{record}-{way}").write_text(text)
    ours = ("get", "pods", "-A", "-l", "app.kubernetes.io/name=gpuledger", "-o", "name")
    empty.wait(lambda: not empty.plane.kubectl(*ours).strip(), "nothing of it runs any more")
    assert not empty.plane.kubectl("get", "crd", "-o", "name").strip()
