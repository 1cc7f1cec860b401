"""What a pod says of where it can go: two pods of one template say the same, whatever else differs."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.formats.kubernetes.constraints import where_it_can_go

Json = dict[str, Any]


ONE_CARD = {"limits": {"nvidia.com/gpu": "1"}}


def a_pod(name: str, **spec: Any) -> Json:
    """Return a pod as the API server stores it."""
    token = {"name": f"kube-api-access-{name}", "projected": {"sources": [{"serviceAccountToken": {}}]}}
    container = {
        "name": "main",
        "image": "train",
        "env": [{"name": "RANK", "value": name}],
        "resources": ONE_CARD,
        "volumeMounts": [{"name": token["name"], "mountPath": "/token"}],
    }
    fields = {"priority": 1, "nodeSelector": {"disk": "fast"}, "hostname": name, "containers": [container]}
    return {"metadata": {"name": name}, "spec": {**fields, "volumes": [token], **spec}}


def test_pods_of_one_template_say_the_same() -> None:
    assert where_it_can_go(a_pod("a")) == where_it_can_go(a_pod("b"))


@pytest.mark.parametrize(
    "different",
    [
        {"nodeSelector": {"disk": "slow"}},
        {"nodeSelector": {}},
        {"affinity": {"nodeAffinity": {}}},
        {"tolerations": [{"operator": "Exists"}]},
        {"topologySpreadConstraints": [{"maxSkew": 1}]},
        {"priority": 2},
        {"preemptionPolicy": "Never"},
        {"hostNetwork": True},
        {"overhead": {"cpu": "1"}},
        {"resourceClaims": [{"name": "nic"}]},
        {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-b"}}]},
        {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
        {"containers": [{"name": "main", "resources": ONE_CARD, "ports": [{"hostPort": 80}]}]},
        {"initContainers": [{"name": "first", "resources": {"requests": {"cpu": "8"}}}]},
    ],
    ids=str,
)
def test_what_can_keep_a_pod_from_a_node_makes_a_difference(different: Json) -> None:
    assert where_it_can_go(a_pod("a")) != where_it_can_go(a_pod("b", **different))


def test_a_pod_without_anything_says_something() -> None:
    assert where_it_can_go({}) == where_it_can_go({"spec": {"containers": []}})
