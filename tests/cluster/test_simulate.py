"""`gpuledger simulate --from-cluster`: what the ledger, the pods and the nodes of a real API server come to."""

import json
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from cluster.cluster import COUNT, Cluster, Json, pod
from gpuledger.command_line.program import main


def simulated(cluster: Cluster, *arguments: str, files: tuple[str, ...] = ()) -> Any:
    kubeconfig = str(cluster.plane.kubeconfig)
    given = [word for file in files for word in ("-f", file)]
    result = CliRunner().invoke(
        main, ["simulate", "--from-cluster", "--kubeconfig", kubeconfig, "-o", "json", *arguments, *given]
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def outcomes(found: Json) -> dict[str, str]:
    return {each["pod"]: each["status"] for each in found["pods"]}


def test_waiting_pods_and_new_ones_on_the_cluster_as_it_is_and_on_a_larger_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    (node,) = cluster.add_nodes(1)
    cluster.create(pod("runs", {COUNT: 6}))
    cluster.wait_bound("runs")
    cluster.create(pod("waits", {COUNT: 8}))
    cluster.wait_refused("waits", "1 fewer than 8 cards entirely free")
    question = tmp_path / "pod.yaml"
    question.write_text(yaml.safe_dump_all([pod("pair", {COUNT: 2}), pod("one", {COUNT: 1})]))
    now = simulated(cluster, files=(str(question),))
    assert outcomes(now) == {"default/waits": "no-room", "default/pair": "placed", "default/one": "no-room"}
    held = {uuid for uuid, names in cluster.holders().items() if names}
    assert not held & {card["uuid"] for card in now["pods"][1]["containers"]["main"]}
    more = simulated(cluster, "--add-nodes", "4", "--like", node.name, files=(str(question),))
    assert set(outcomes(more).values()) == {"placed"}
    assert (more["fitWithoutAddedNodes"], more["fit"]) == (1, 3)
    assert cluster.holders().keys() == {card.uuid for card in node.cards}
