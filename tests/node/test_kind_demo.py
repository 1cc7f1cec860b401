"""examples/kind/demo.sh, all but kind itself: two real nodes stand in for its containers, and its image is here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from build_control_plane import ensure_binaries
from build_steps import BuildError
from cluster.kubernetes import needs_filling_in
from control_plane import ControlPlaneError
from installation import REPOSITORY
from manifests.helm import own_homes, the_helm
from node.pod_cluster import NODES, PodCluster, require_pods

pytestmark = [pytest.mark.timeout(400), needs_filling_in]  # an older one needs the webhook, and a proxy for its Service
DEMO = REPOSITORY / "examples" / "kind" / "demo.sh"
CARDS_PER_NODE = 8
STAND_IN = '#!/bin/sh\necho "$(basename "$0") $*" >> {log}\n'


@pytest.fixture
def cluster() -> Iterator[PodCluster]:
    """Yield two nodes with the images that kind would fetch, and nothing of ours."""
    require_pods()
    try:
        with PodCluster.running() as cluster:
            cluster.bring_images()
            cluster.bring_public_images()
            yield cluster
    except (ControlPlaneError, BuildError) as error:
        pytest.fail(f"The cluster does not start.\n{error}", pytrace=False)


@pytest.fixture
def environment(cluster: PodCluster, tmp_path: Path) -> dict[str, str]:
    """Return variables with which the script finds stand-ins for docker and kind, and the cluster as kind's."""
    for name in ("docker", "kind"):
        (tmp_path / name).write_text(STAND_IN.format(log=tmp_path / "log"))
        (tmp_path / name).chmod(0o755)
    (tmp_path / "helm").symlink_to(the_helm().program)
    config = yaml.safe_load(cluster.plane.kubeconfig.read_text())
    config["contexts"][0]["name"] = config["current-context"] = "kind-gpuledger"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    places = [tmp_path, ensure_binaries(), Path(sys.executable).parent, os.environ["PATH"]]
    path = os.pathsep.join(map(str, places))
    return {
        **os.environ,
        **own_homes(tmp_path),
        "PATH": path,
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "KUBERC": "off",
    }


def test_nodes_without_gpus_show_pods_that_share_cards(
    cluster: PodCluster, environment: dict[str, str], tmp_path: Path
) -> None:
    def run() -> str:
        done = subprocess.run([DEMO], env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{cluster._logs()}"
        return done.stdout

    told = run()
    assert "no card as large as 60000 MiB" in told
    assert all(f"{node} " in told.partition("gpuledger top")[2] for node in NODES)
    assert len(cluster.cards()) == len(NODES) * CARDS_PER_NODE
    bound = [name for name, pod in cluster.pods().items() if pod["spec"].get("nodeName")]
    assert len(bound) >= 6
    ran = {"Running", "Succeeded"}
    cluster.wait(lambda: all(cluster.pod(name)["status"]["phase"] in ran for name in bound), "they run", timeout_s=120)
    cluster.check_consistent()
    pods = cluster.pods()
    run()
    assert cluster.pods().keys() == pods.keys()  # each step can be repeated
    calls = (tmp_path / "log").read_text().splitlines()
    assert [call.partition("gpuledger:")[0] for call in calls[:5]] == [
        "docker version",
        "kind get clusters",
        "kind create cluster --name gpuledger --config examples/kind/cluster.yaml",
        "docker build -f manifests/Dockerfile --build-arg HAMI_CORE=without -t ",
        "kind load docker-image ",
    ]
