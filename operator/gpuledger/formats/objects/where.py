"""What decides for kube-scheduler to which nodes a pod can go, cards aside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
    """Return a text that is the same for pods that can go to the same nodes. It may differ for others that can."""
    spec = pod.get("spec") or {}
    found = {name: spec[name] for name in OF_POD if name in spec}
    for kind in ("initContainers", "containers"):
        found[kind] = [{name: each.get(name) for name in OF_CONTAINERS} for each in spec.get(kind) or ()]
    found["volumes"] = [each for each in spec.get("volumes") or () if not ANYWHERE.intersection(each)]
    return json.dumps(found, sort_keys=True)
