"""Which members of a gang leave with which: half a gang is of no use, and its other half would keep its cards.

A gang of more members than it needs can lose the youngest of them one by one. Of the others none leaves without the
rest; and if they leave, those do, too.
"""

from __future__ import annotations

from collections.abc import Collection

from gpuledger.ledger.book import Ledger
from gpuledger.model.share import HolderState, Pod
from gpuledger.placement.preemption.cost import NOT_STARTED_S
from gpuledger.workflows.gangs.gang_state import GangState
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.preemption.pod_lifecycles import PodLifecycles


class EvictedTogether:
    """Looks at gangs as they are now."""

    def __init__(self, members: Members, ledger: Ledger, lives: PodLifecycles) -> None:
        self._members = members
        self._ledger = ledger
        self._lives = lives

    def leave_with(self, pod_uid: str) -> list[Pod]:
        """Return the members of a pod's gang that would have to leave with it; none if it can leave by itself.

        Itself included, and without those that leave already. Members that are being bound are among them.
        """
        state = self._members.of(pod_uid)
        if state is None:
            return []
        there = self._there(state)
        spare = self._spare(state)
        if spare > 0:
            youngest_first = sorted(there, key=lambda pod: self._age(pod.uid), reverse=True)
            spared = {pod.uid for pod in youngest_first[:spare]}
            if pod_uid in spared:
                return []
            there = [pod for pod in there if pod.uid not in spared]
        return there if len(there) > 1 and any(pod.uid == pod_uid for pod in there) else []

    def all_who_leave(self, pod_uids: Collection[str]) -> dict[str, Pod]:
        """Return who leaves as well, beside these pods, by UID: the rest of each gang that they break."""
        found: dict[str, Pod] = {}
        for state in {id(each): each for each in map(self._members.of, pod_uids) if each is not None}.values():
            there = self._there(state)
            chosen = sum(pod.uid in pod_uids for pod in there)
            if chosen > self._spare(state):
                found |= {pod.uid: pod for pod in there if pod.uid not in pod_uids}
        return found

    def waits_for_its_gang(self, pod_uid: str) -> bool:
        """Return whether a pod waits for others of its gang: room for it alone is of no use."""
        state = self._members.of(pod_uid)
        return state is not None and pod_uid in state.pending and state.missing > 0

    def _spare(self, state: GangState) -> int:
        """Return how many members the gang can do without."""
        if state.group is not None and state.group.leaves_whole:
            return 0
        leaving = sum(self._lives.is_leaving(uid) for uid in state.bound)
        return max(0, -state.missing - leaving)

    def _there(self, state: GangState) -> list[Pod]:
        """Return the members that hold cards, and stay."""
        found = []
        for uid in (*state.bound, *state.pending):
            holders = self._ledger.holders_of(uid)
            if holders and holders[0][1].state is HolderState.ALLOCATED and not self._lives.is_leaving(uid):
                found.append(holders[0][1].pod)
        return found

    def _age(self, pod_uid: str) -> tuple[int, str]:
        return self._lives.started_s(pod_uid) or NOT_STARTED_S, pod_uid
