"""Pods that no node could take, and their order where looking for room takes time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuledger.model.node import NodeSet
from gpuledger.model.request import PodRequest, Shape
from gpuledger.model.share import Pod
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import StepBudget

Rank = tuple[int, str, int]
"""What goes first is less: minus the priority, time of creation, number of the pod in the order of its coming."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A refused pod. `node_names` are those that kube-scheduler would take; None if that is not known."""

    pod: Pod
    request: PodRequest
    rank: Rank
    node_names: NodeSet | None
    tried_s: float | None = None
    """When kube-scheduler asked for it last, in Unix seconds; None if it has not, since this operator has started."""

    @property
    def created(self) -> str:
        """Return when the pod was created, RFC 3339."""
        return self.rank[1]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that may fit: on these nodes, or anywhere if it is not known."""

    waiting: WaitingPod
    fitting: set[str] | None
    since: int | None
    """Number of the last change that had been looked at before; None if no node was looked at."""

    def still_fits(self, chooser: Chooser, work: StepBudget) -> bool:
        """Return whether others have left room on one of the nodes."""
        shape = self.waiting.request.shape
        return self.fitting is None or any(chooser.fits(shape, name, work) for name in self.fitting)


def rank_of(waiting: WaitingPod) -> Rank:
    """Sort key: who goes first."""
    return waiting.rank


def in_turns(waiting: Iterable[WaitingPod], shapes_at_once: int) -> list[WaitingPod]:
    """Return pods in their order, except that a namespace with many shapes of pods does not keep the others waiting.

    Its first shapes, as many as `shapes_at_once`, are in the first turn with those of all others, as many again in the
    second, and so on. Pods of the same shape take no longer than one.
    """
    turns: list[list[WaitingPod]] = []
    turn_of: dict[str, dict[Shape, int]] = {}  # namespace -> shape -> its turn
    for one in waiting:
        known = turn_of.setdefault(one.pod.namespace, {})
        turn = known.setdefault(one.request.shape, len(known) // shapes_at_once)
        while len(turns) <= turn:
            turns.append([])
        turns[turn].append(one)
    return [one for turn in turns for one in turn]


def who_may_go(waiting: Sequence[WaitingPod], node_names: set[str]) -> list[WaitingPod]:
    """Return those whom kube-scheduler would let go to one of these nodes."""
    if not node_names:
        return []
    answers: dict[int, bool] = {}  # identity of a set of names -> whether one of these nodes is in it
    for names in {id(one.node_names): one.node_names for one in waiting}.values():
        answers[id(names)] = names is None or not names.isdisjoint(node_names)
    return [one for one in waiting if answers[id(one.node_names)]]
