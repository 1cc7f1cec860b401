"""What `make kind-demo` shows, and that it can be repeated.

Before test_failures.py, as files are run by their names: pods that count GPUs fail for good on a node that restarts.
"""

from __future__ import annotations

from kind.cluster import WORKERS, KindCluster


def test_the_demo_places_what_it_shows_and_can_be_repeated(cluster: KindCluster) -> None:
    told = cluster.demo()
    assert "no card as large as 60000 MiB" in told
    assert all(f"{worker} " in told for worker in WORKERS)
    assert "control-plane" not in told.partition("gpuledger top")[2].partition("gpuledger explain")[0]
    phases = {each["metadata"]["name"]: each["status"]["phase"] for each in cluster.objects("pods")}
    assert phases.pop("too-large") == "Pending"
    assert set(phases.values()) <= {"Running", "Succeeded"}
    assert len(cluster.cards()) == 8 * len(WORKERS)
