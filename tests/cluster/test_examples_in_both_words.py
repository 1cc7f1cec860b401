"""The examples in gpuledger's words and in claims', on the same cards."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import yaml

from cluster.claims import claims_of, create_class, results
from cluster.cluster import Cluster, Json
from cluster.kubernetes import CLAIMS_NAME_AMOUNTS
from gpuledger.formats.resource_claims.slices import device_name
from installation import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
PAIRS = {
    "01-share.yaml": ("chat-1", "chat-2"),
    "02-percentage.yaml": ("embedding",),
    "03-whole-cards.yaml": ("render",),
    "04-alone.yaml": ("latency",),
    "05-several-cards.yaml": ("speech",),
}
"""File -> the pods that are in it, and by claim under `claim-` and the same name."""


def shares(cluster: Cluster, pod_name: str) -> Counter[tuple[int, int, bool]]:
    """Return memory, cores and whether it is alone, of each of a pod's shares."""
    held = itertools.chain.from_iterable(cluster.holders().values())
    return Counter((h["memoryMiB"], h["cores"], h["exclusive"]) for h in held if h["pod"] == pod_name)


def allocated(cluster: Cluster, pod_name: str) -> set[str]:
    """Return the devices of a pod's claims."""
    return {each["device"] for claim in claims_of(cluster, pod_name) for each in results(claim)}


def test_each_example_gets_the_same_by_a_claim(cluster: Cluster) -> None:
    create_class(cluster)
    cluster.add_nodes(2)
    files = [file for name in PAIRS for file in (EXAMPLES / name, EXAMPLES / "claims" / name)]
    if not CLAIMS_NAME_AMOUNTS:
        files = [file for file in files if file.name == "02-percentage.yaml" or file.name == "03-whole-cards.yaml"]
    for file in (*files, EXAMPLES / "claims" / "06-containers.yaml", EXAMPLES / "claims" / "07-shared.yaml"):
        cluster.plane.kubectl("apply", "-f", str(file))
    names = [each["metadata"]["name"] for file in files for each in objects(file) if each["kind"] == "Pod"]
    cluster.wait_bound(*names, "claim-video", "claim-notebook", "claim-trainer")
    for name in (name for name in names if not name.startswith("claim-")):
        assert shares(cluster, name) == shares(cluster, f"claim-{name}"), name
    for name in (name for name in names if name.startswith("claim-")):
        held = {device_name(uuid) for uuid, found in cluster.holders().items() if name in {h["pod"] for h in found}}
        assert held == allocated(cluster, name), name
    assert sum(map(len, (shares(cluster, name) for name in ("claim-notebook", "claim-trainer")))) == 1
    cluster.check_consistent()


def objects(file: Path) -> list[Json]:
    """Return the objects of a file."""
    return list(yaml.safe_load_all(file.read_text()))
