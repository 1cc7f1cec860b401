"""Stand-ins: pods by which an autoscaler is asked for nodes. Each stands for one node that is to come.

An autoscaler adds a node for a pod with the condition `PodScheduled` False and the reason `Unschedulable`, whoever has
written that. Sources: cluster-autoscaler 1.36, utils/kubernetes/listers.go; Karpenter 1.14, pkg/utils/pod/scheduling.go
(IsProvisionable). No scheduler has the name that a stand-in says, so nobody binds it, and no image is pulled.

It needs a new node of its own: by anti-affinity it keeps off other stand-ins, and off nodes with pods of ours, which
admission labels. So it asks for as many slots as a node has *cards*, though nodes list ten times as many: what cloud
providers say of types of nodes is the number of cards. It tolerates the taints of its template and no others: Karpenter
takes a pod that tolerates every taint for one that tolerates the taint of a node that is going.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuledger.formats.annotations import OWN_NAMESPACE, STAND_IN_LABEL
from gpuledger.formats.kubernetes.pod import created_at, pod_identity
from gpuledger.model.clock import rfc3339
from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod

MANAGED_LABEL: Final = "gpuledger.dev/managed"
"""On pods with cards, so that they can be selected; admission writes it."""

NOBODY: Final = "gpuledger.dev-nobody"
"""The scheduler that it names."""

_IMAGE: Final = "gpuledger.dev/stand-in:never-pulled"


@dataclass(frozen=True, slots=True)
class StandIn:
    """One, as the API server has it."""

    pod: Pod
    template: str
    created: str
    """RFC 3339."""
    is_seen: bool
    """Whether it has the condition that autoscalers look for."""

    @property
    def order(self) -> tuple[str, str]:
        """Sort key: the oldest first."""
        return self.created, self.pod.name


def stand_in(name: str, template: str, selector: Mapping[str, str], tolerations: Sequence[Json], asked: Json) -> Json:
    """Return the pod that asks for so much of a new node with these labels."""
    own, ours = _keeps_off(STAND_IN_LABEL), {**_keeps_off(MANAGED_LABEL), "namespaceSelector": {}}
    container = {
        "name": "stand-in",
        "image": _IMAGE,
        "resources": {"requests": dict(asked), "limits": dict(asked)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": OWN_NAMESPACE, "labels": {STAND_IN_LABEL: template}},
        "spec": {
            "schedulerName": NOBODY,
            "nodeSelector": dict(selector),
            "tolerations": list(tolerations),
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own, ours]}},
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


def _keeps_off(label: str) -> Json:
    selected = {"matchExpressions": [{"key": label, "operator": "Exists"}]}
    return {"labelSelector": selected, "topologyKey": "kubernetes.io/hostname"}


def unschedulable(sentence: str, now: datetime) -> Json:
    """Return the condition that autoscalers look for."""
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": sentence,
        "lastTransitionTime": rfc3339(now),
    }


def read_stand_in(pod: Json) -> StandIn:
    """Read a stand-in."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    is_seen = any(each.get("type") == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)
    return StandIn(pod_identity(pod), pod["metadata"]["labels"][STAND_IN_LABEL], created_at(pod), is_seen)
