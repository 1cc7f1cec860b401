"""Where members can go that kube-scheduler has not asked for.

Where it tries Kubernetes' own groups as a whole, from 1.37 on, it ends at the first member that finds no card, if too
few are left then. Others can go where that one can, if everything that decides this is the same for them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpuledger.formats.kubernetes.constraints import where_it_can_go
from gpuledger.model.gang import GangWay
from gpuledger.model.json_object import Json
from gpuledger.workflows.gangs.gang_state import GangState, Member
from gpuledger.workflows.gangs.members import Members


class SimilarMembers:
    """Knows the members of Kubernetes' own groups."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._terms: dict[str, str] = {}  # pod UID -> what decides where it can go

    def observe_pending(self, pod: Json) -> None:
        """See PendingPodTracker."""
        uid = pod["metadata"]["uid"]
        state = self._members.of(uid)
        if state is not None and state.name.way is GangWay.KUBERNETES:
            self._terms[uid] = where_it_can_go(pod)

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        self._terms.pop(pod_uid, None)

    def known_pending(self) -> set[str]:
        """See PendingPodTracker."""
        return set(self._terms)

    def of(self, asked: Collection[Member], state: GangState) -> list[Member]:
        """Return the members that were not asked for and are like one that was, with the nodes of that one."""
        latest_last = sorted(asked, key=lambda member: member.tried_s or 0.0)
        names = {self._terms.get(member.pod.uid): member.node_names for member in latest_last}
        names.pop(None, None)
        others = (member for member in state.pending.values() if member.node_names is None)
        found = ((member, names.get(self._terms.get(member.pod.uid))) for member in others)
        return [replace(member, node_names=its) for member, its in found if its is not None]
