"""A workload of Kueue is explained as a pod is: what it asks for, and why nodes do not take the next of its pods."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.objects import GPU
from fakes.queue_scene import WHOLE, QueueScene
from gpuledger.model.errors import NotFound
from gpuledger.reports.explanation import Kind

Json = dict[str, Any]


async def explained(scene: QueueScene, kind: Kind, name: str) -> Json:
    return (await scene.parts.workflows.explainer.explain(kind, "default", name)).json()


async def test_a_workload_that_finds_no_cards_is_explained_node_by_node(scene: QueueScene) -> None:
    assert scene.stranger("tenant", WHOLE)
    await scene.parts.bind("tenant", "node-a")
    await scene.work()
    scene.submit("wants", WHOLE, pods=5)
    await scene.work()
    found = await explained(scene, Kind.WORKLOAD, "wants")
    assert (found["kind"], found["state"], found["hasPlace"]) == ("workload", "waiting-for-cards", False)
    assert found["summary"].startswith("3 of 5 pods find cards at once. For the next one, 0 of 1 GPU nodes take it")
    assert [(each["name"], each["pods"], each["text"]) for each in found["requests"]] == [("main", 5, "1 whole card")]
    [node] = found["nodes"]
    assert (found["example"], node["fits"]) == ("main", False)
    assert {"default/tenant"} <= {pod for card in node["cards"] for pod in card["by"]}


async def test_a_workload_with_cards_has_no_nodes_that_refuse_it(scene: QueueScene) -> None:
    scene.submit("fits", {GPU: "2"})
    await scene.work()
    found = await explained(scene, Kind.WORKLOAD, "fits")
    assert (found["nodes"], found["example"], found["warnings"]) == ([], None, [])


async def test_pods_and_gangs_are_explained_in_the_same_place_and_unknown_ones_are_not_found(
    scene: QueueScene,
) -> None:
    scene.stranger("alone", WHOLE)
    assert (await explained(scene, Kind.POD, "alone"))["kind"] == "pod"
    for kind in (Kind.POD, Kind.GANG):
        with pytest.raises(NotFound):
            await explained(scene, kind, "nobody")
