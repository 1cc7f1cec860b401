"""What decides for kube-scheduler to which nodes a pod can go, cards aside."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import orjson

Json = Mapping[str, Any]

OF_POD = (
    "affinity",
    "hostNetwork",
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priority",
    "resourceClaims",
    "resources",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "tolerations",
    "topologySpreadConstraints",
)
OF_CONTAINERS = ("ports", "resources", "restartPolicy")
ANYWHERE = {"configMap", "downwardAPI", "emptyDir", "hostPath", "image", "projected", "secret"}
"""Volumes that any node can mount. The API server adds one to each pod, with a name of its own."""


def where_it_can_go(pod: Json) -> str:
    """Return what is the same for pods that can go to the same nodes. It may differ for others that can.

    32 characters, as users choose how much decides it.
    """
    spec = pod.get("spec") or {}
    found = {name: spec[name] for name in OF_POD if name in spec}
    for kind in ("initContainers", "containers"):
        found[kind] = [{name: each.get(name) for name in OF_CONTAINERS} for each in spec.get(kind) or ()]
    found["volumes"] = [each for each in spec.get("volumes") or () if not ANYWHERE.intersection(each)]
    return blake2b(orjson.dumps(found, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
