"""Words of other systems and typos, on a real control plane: one Event; a metric counts."""

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, pod

pytestmark = pytest.mark.promise("vGPU guide")

FOREIGN = 'gpuledger_words_without_effect_total{kind="foreign"}'
UNKNOWN = 'gpuledger_words_without_effect_total{kind="unknown"}'


def ours(cluster: Cluster, name: str) -> list[str]:
    return [text for text in cluster.messages(name) if "has no effect" in text or "is not known" in text]


def test_words_without_effect_are_told_once_and_right_words_are_not(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=2)
    before = cluster.metric(FOREIGN), cluster.metric(UNKNOWN)
    wrong = pod("wrong", {COUNT: 1, "nvidia.com/gpumen": 1}, annotations={"volcano.sh/queue-name": "q"})
    cluster.create(wrong)
    cluster.wait(lambda: bool(ours(cluster, "wrong")), "the pod is told")
    cluster.patch("/api/v1/namespaces/default/pods/wrong", {"metadata": {"annotations": {"team": "blue"}}})
    cluster.create(pod("right", {COUNT: 1, MEMORY: 100}), pod("right-too", {COUNT: 1, MEMORY: 100}))
    for name in ("right", "right-too"):
        cluster.wait_bound(name)
    cluster.settle()
    (message,) = ours(cluster, "wrong")
    assert "annotation volcano.sh/queue-name has no effect. For Volcano" in message
    assert "resource nvidia.com/gpumen is not known: did you mean nvidia.com/gpumem?" in message
    assert ours(cluster, "right") == ours(cluster, "right-too") == []
    assert (cluster.metric(FOREIGN), cluster.metric(UNKNOWN)) == (before[0] + 1, before[1] + 1)
