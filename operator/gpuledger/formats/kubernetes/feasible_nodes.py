"""What decides in kube-scheduler which nodes a pod may go to, whatever other pods there are.

Source: kube-scheduler's filter plugins. Left out, because they can't differ between pods of one profile: taints of
nodes, `unschedulable`, what the profile adds.
"""

from __future__ import annotations

from hashlib import blake2b

import orjson

from gpuledger.model.json_object import JsonMapping

MOST_BYTES = 8 * 1024
"""As JSON; users choose how long they are."""

OF_POD = ("schedulerName", "nodeSelector", "affinity", "tolerations", "overhead", "hostNetwork")
OF_CONTAINER = ("resources", "restartPolicy", "ports")
CONTAINERS = ("initContainers", "containers")
DEPENDS_ON_OTHERS = ("topologySpreadConstraints", "resourceClaims", "schedulingGates")
ON_ANY_NODE = frozenset(("name", "configMap", "secret", "projected", "downwardAPI", "emptyDir", "hostPath", "image"))
"""Kinds of volumes that every node has, and the name of each volume."""


def demands_on_nodes(pod: JsonMapping) -> bytes | None:
    """Return 16 bytes that are the same for pods to which kube-scheduler would allow the same nodes.

    None where that depends on more than the node, such as other pods, volumes or claims, and for very long demands.
    """
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    if affinity.get("podAffinity") or affinity.get("podAntiAffinity") or any(map(spec.get, DEPENDS_ON_OTHERS)):
        return None
    if not all(volume.keys() <= ON_ANY_NODE for volume in spec.get("volumes") or ()):
        return None
    containers = [[_picked(each, OF_CONTAINER) for each in spec.get(kind) or ()] for kind in CONTAINERS]
    text = orjson.dumps([_picked(spec, OF_POD), containers], option=orjson.OPT_SORT_KEYS)
    return blake2b(text, digest_size=16).digest() if len(text) <= MOST_BYTES else None


def _picked(found: JsonMapping, names: tuple[str, ...]) -> JsonMapping:
    return {name: found[name] for name in names if found.get(name)}
