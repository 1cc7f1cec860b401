"""Tracks victims that were chosen but not yet observed as terminating."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuledger.model.share import Pod


@dataclass(slots=True)
class _Choice:
    priority: int
    chosen: set[str] = field(default_factory=set)
    """UIDs of those who are to leave."""
    evicted: set[str] = field(default_factory=set)
    """UIDs of those of whom that was asked, or is being asked."""


class ChosenVictims:
    """Remembers victims, as long as the preemption that has chosen them lasts."""

    def __init__(self) -> None:
        self._choices: dict[str, _Choice] = {}  # pod UID -> its victims
        self._chosen_by: dict[str, set[str]] = {}  # UID of a victim -> UIDs of the pods for which it is to leave

    def choose(self, pod: Pod, victims: Iterable[str]) -> None:
        """Record that pods are to leave for another one."""
        chosen = self._choices.setdefault(pod.uid, _Choice(pod.priority)).chosen
        for uid in victims:
            chosen.add(uid)
            self._chosen_by.setdefault(uid, set()).add(pod.uid)

    def forget(self, pod_uid: str) -> None:
        """Record that no pod leaves for a pod any more."""
        choice = self._choices.pop(pod_uid, None)
        for uid in choice.chosen if choice else ():
            self._chosen_by[uid].discard(pod_uid)
            if not self._chosen_by[uid]:
                del self._chosen_by[uid]

    def leaves_anyway(self, pod_uid: str, pod: Pod) -> bool:
        """Return whether the pod is already being evicted for another preemptor of at least this priority.

        Whoever is of less priority loses its place, and then nobody leaves for it any more.
        """
        choosers = self._chosen_by.get(pod_uid)
        if not choosers:
            return False
        return any(uid != pod.uid and self._choices[uid].priority >= pod.priority for uid in choosers)

    def is_evicted(self, pod_uid: str) -> bool:
        """Return whether a pod was asked to leave, or is being asked, for whomever."""
        return any(pod_uid in choice.evicted for choice in self._choices.values())

    def is_to_be_evicted(self, pod: Pod, victim_uid: str) -> bool:
        """Record that a pod is evicted for another; return False if that was done already, for whomever."""
        if self.is_evicted(victim_uid):
            return False
        self._choices.setdefault(pod.uid, _Choice(pod.priority)).evicted.add(victim_uid)
        return True

    def was_not_evicted(self, pod: Pod, victim_uid: str) -> None:
        """Record that a pod could not be evicted: it can be tried again."""
        if pod.uid in self._choices:
            self._choices[pod.uid].evicted.discard(victim_uid)
