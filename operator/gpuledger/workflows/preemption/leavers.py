"""Who has been chosen to leave, and for whom: no watch shows it yet."""

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


class Leavers:
    """Remembers victims, as long as the preemption that has chosen them lasts."""

    def __init__(self) -> None:
        self._choices: dict[str, _Choice] = {}  # pod UID -> its victims

    def choose(self, pod: Pod, victims: Iterable[str]) -> None:
        """Note that pods are to leave for another one."""
        self._choices.setdefault(pod.uid, _Choice(pod.priority)).chosen.update(victims)

    def forget(self, pod_uid: str) -> None:
        """Note that no pod leaves for a pod any more."""
        self._choices.pop(pod_uid, None)

    def leaves_anyway(self, pod_uid: str, pod: Pod) -> bool:
        """Tell whether a pod leaves for others than this one, which keep their places from it.

        Whoever is of less priority loses its place, and then nobody leaves for it any more.
        """
        return any(
            pod_uid in choice.chosen and uid != pod.uid and choice.priority >= pod.priority
            for uid, choice in self._choices.items()
        )

    def is_to_be_evicted(self, pod: Pod, victim_uid: str) -> bool:
        """Note that a pod is evicted for another; return False if that was done already, for whomever."""
        if any(victim_uid in choice.evicted for choice in self._choices.values()):
            return False
        self._choices.setdefault(pod.uid, _Choice(pod.priority)).evicted.add(victim_uid)
        return True

    def was_not_evicted(self, pod: Pod, victim_uid: str) -> None:
        """Note that a pod could not be evicted: it can be tried again."""
        if pod.uid in self._choices:
            self._choices[pod.uid].evicted.discard(victim_uid)
