"""A workload of Kueue: whether it is admitted, and if not, whether it waits for quota or for cards, and for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuledger.formats.kubernetes.workload import why_not_admitted, workload
from gpuledger.model.json_object import Json
from gpuledger.reports.explanation import NodeReason


class WorkloadState(StrEnum):
    """How far a workload is."""

    NO_QUOTA = "waiting-for-quota"
    HAS_QUOTA = "has-quota"
    """And waits for its admission checks, or is about to be admitted."""
    NO_CARDS = "waiting-for-cards"
    """It has quota, and the operator finds no cards for it."""
    ADMITTED = "admitted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """One of them."""

    namespace: str
    name: str
    owner: str
    """The kind and name of what it stands for: "Job/train"."""
    state: WorkloadState
    summary: str
    queue: str
    """Its LocalQueue."""
    cluster_queue: str
    """Where it has quota; empty if it has none."""
    priority: int
    since: str
    """When it was created, RFC 3339."""
    pods: Sequence[str] = ()
    """Of each set of pods: how many there are, and what each asks for."""
    example: str = ""
    """The set of pods of which nodes do not take one."""
    nodes: Sequence[NodeReason] = ()
    """Why, beside those of its pods that find cards: the nearest nodes first."""

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        return {
            "namespace": self.namespace,
            "workload": self.name,
            "owner": self.owner or None,
            "state": self.state.value,
            "summary": self.summary,
            "queue": self.queue or None,
            "clusterQueue": self.cluster_queue or None,
            "priority": self.priority,
            "since": self.since,
            "pods": list(self.pods),
            "example": self.example or None,
            "nodes": [node.json() for node in self.nodes],
        }


def workload_report(found: Mapping[str, Any]) -> WorkloadReport:
    """Return what a workload says of itself."""
    now = workload(found)
    state, summary = WorkloadState.NO_QUOTA, why_not_admitted(found)
    if now.is_finished:
        state, summary = WorkloadState.FINISHED, "has finished"
    elif now.is_admitted:
        state, summary = WorkloadState.ADMITTED, f"is admitted from ClusterQueue {now.cluster_queue}: its pods may come"
    elif now.has_quota:
        state = WorkloadState.HAS_QUOTA
    return WorkloadReport(
        namespace=now.name.namespace,
        name=now.name.name,
        owner=next((f"{each.get('kind')}/{each.get('name')}" for each in _owners(found)), ""),
        state=state,
        summary=summary,
        queue=now.queue,
        cluster_queue=now.cluster_queue,
        priority=now.priority,
        since=now.created,
    )


def is_named(found: Mapping[str, Any], name: str) -> bool:
    """Return whether a workload, or what it stands for, has this name."""
    return name in (found["metadata"]["name"], *(each.get("name") for each in _owners(found)))


def _owners(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return found["metadata"].get("ownerReferences") or ()
