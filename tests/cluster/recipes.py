"""The manifests of examples/recipes on a cluster, and what becomes of the pods that their controllers make."""

from __future__ import annotations

from typing import Any

import yaml

from cluster.cluster import PODS, Cluster
from installation import REPOSITORY

Json = dict[str, Any]

RECIPES = REPOSITORY / "examples" / "recipes"


def recipe(name: str, called: str = "") -> Json:
    found: Json = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    if called:
        found["metadata"]["name"] = called
    return found


def bound(cluster: Cluster, owner: str) -> dict[str, Json]:
    """Return the pods whose names begin like this, and that have a node and are not on their way out."""
    return {
        name: found
        for name, found in cluster.pods().items()
        if name.startswith(owner) and found["spec"].get("nodeName") and "deletionTimestamp" not in found["metadata"]
    }


def fail(cluster: Cluster, name: str) -> None:
    """Have a pod fail, as its kubelet reports it."""
    main = cluster.pods()[name]["spec"]["containers"][0]["name"]
    ended = {"name": main, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    status = {
        "phase": "Failed",
        "containerStatuses": [{**ended, "image": "", "imageID": "", "ready": False, "restartCount": 0}],
    }
    cluster.patch(f"{PODS}/{name}/status", {"status": status})


def uids(pods: dict[str, Json]) -> set[str]:
    return {each["metadata"]["uid"] for each in pods.values()}


def cards(cluster: Cluster, owner: str) -> set[str]:
    """Return the cards that pods hold whose names begin like this."""
    holders = cluster.holders().items()
    return {uuid for uuid, all_of_card in holders if any(each["pod"].startswith(owner) for each in all_of_card)}
