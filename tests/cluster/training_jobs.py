"""Kinds of training jobs whose templates admission changes: an object of each, and how the API server gets them."""

from __future__ import annotations

import json
from typing import Any

from cluster.cluster import COUNT, MEMORY, Cluster, Connection, RequestFailed, container
from cluster.dry_runs import DRY

Json = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TRAINING = {
    "jobset.x-k8s.io": ("v1alpha2", "jobsets", "JobSet"),
    "kubeflow.org": ("v1", "pytorchjobs", "PyTorchJob"),
    "ray.io": ("v1", "rayclusters", "RayCluster"),
    "leaderworkerset.x-k8s.io": ("v1", "leaderworkersets", "LeaderWorkerSet"),
}
"""Group -> version, resource and kind. The API server has them after the operator has begun."""


def template_of(*amounts: Json) -> Json:
    """Return a template with a container for each of these limits."""
    return {"spec": {"containers": [container(each, f"c{index}") for index, each in enumerate(amounts)]}}


TRAINING_JOBS: list[Json] = [
    {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "metadata": {"name": "training"},
        "kind": "JobSet",
        "spec": {
            "replicatedJobs": [
                {"name": "driver", "template": {"spec": {"template": template_of({})}}},
                {"name": "w", "template": {"spec": {"template": template_of({COUNT: 2, MEMORY: 4000})}}},
            ]
        },
    },
    {
        "apiVersion": "kubeflow.org/v1",
        "metadata": {"name": "training"},
        "kind": "PyTorchJob",
        "spec": {"pytorchReplicaSpecs": {"Worker": {"template": template_of({COUNT: 2, MEMORY: 4000})}}},
    },
    {
        "apiVersion": "ray.io/v1",
        "metadata": {"name": "training"},
        "kind": "RayCluster",
        "spec": {
            "headGroupSpec": {"template": template_of({})},
            "workerGroupSpecs": [{"template": template_of({COUNT: 2, MEMORY: 4000})}],
        },
    },
    {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "metadata": {"name": "training"},
        "kind": "LeaderWorkerSet",
        "spec": {"leaderWorkerTemplate": {"workerTemplate": template_of({COUNT: 2, MEMORY: 4000})}},
    },
]


def create_kind(cluster: Cluster, group: str) -> None:
    """Have the API server know a kind, whatever its objects look like."""
    version, plural, kind = TRAINING[group]
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
        "versions": [{"name": version, "served": True, "storage": True, "schema": anything}],
    }
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    cluster.request("POST", CRDS, {**body, "metadata": {"name": f"{plural}.{group}"}})
    cluster.plane.wait_established(f"{plural}.{group}")


def sent(user: Connection, body: Json) -> Json:
    """Return an object as it would be stored."""
    group, _, version = body["apiVersion"].rpartition("/")
    plural = TRAINING[group][1] if group in TRAINING else f"{body['kind'].lower()}s"
    start = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return user.request("POST", f"{start}/namespaces/default/{plural}{DRY}", body)


def tried(user: Connection, body: Json) -> str:
    """Return an object as it would be stored; nothing while the API server does not know its kind."""
    try:
        return json.dumps(sent(user, body))
    except RequestFailed:
        return ""
