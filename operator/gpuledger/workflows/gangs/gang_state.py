"""A gang as the watches and kube-scheduler's questions have shown it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuledger.model.gang import Gang, GangName, PodGroup
from gpuledger.model.node import NodeSet
from gpuledger.model.refusal import Refusal
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod


@dataclass(slots=True)
class Member:
    """A pod of a gang that has no node yet."""

    pod: Pod
    gang: Gang
    request: PodRequest
    since: str
    controller: str = ""
    """UID of the object that has made it and replaces it, empty if there is none."""
    node_names: NodeSet | None = None
    """The nodes that kube-scheduler would take for it, as of its last question; None if it has asked none."""
    refused: bool = False
    """Its last question was answered with no, and it has to be woken to ask again."""
    tried_s: float | None = None
    """When kube-scheduler asked for it last, in Unix seconds."""
    refusal: Refusal | None = None
    """The last answer to it that was a no."""
    version: str = ""
    """The pod's resourceVersion, as the watch has shown it last."""
    ruled_out: bool = False
    """Whether kube-scheduler, when it tried the pod last, found no node that it may go to, whoever else leaves."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class GangState:
    """A gang's members. What others remember of a gang they keep by this object, and so no longer than it has pods."""

    name: GangName
    pending: dict[str, Member] = field(default_factory=dict)  # pod UID -> member
    bound: dict[str, tuple[int, str]] = field(default_factory=dict)  # pod UID -> the minimum that it says, controller
    asked: int = 0
    """How often kube-scheduler has named other nodes for a member than before."""
    without_gpus: dict[str, bool] = field(default_factory=dict)  # UIDs of members that ask for none -> bound or not
    done: dict[str, str] = field(default_factory=dict)  # UIDs of members that have succeeded -> their controller
    done_of: Counter[str] = field(default_factory=Counter)
    """The controllers of these, and how many each has made: a Job can have thousands."""
    said: Counter[int] = field(default_factory=Counter)
    """The minimums that members say, and how many say each: gangs can have thousands of pods."""
    controllers: Counter[str] = field(default_factory=Counter)
    """The controllers of members that wait or are bound, and how many each has made."""
    first_s: float | None = None
    """When its first member was seen, by the operator's clock; see ArrivalWindow."""
    newest_s: float | None = None
    """The same of its newest member."""
    _rank: tuple[int, str] | None = None
    """See `rank`: thousands of gangs are sorted by it whenever something changes."""
    group: PodGroup | None = None
    """What the object says that it is named after; None where the members say all."""

    @property
    def problem(self) -> str:
        """Return why it can't start, whoever comes: its PodGroup does not exist, or can't be used. Empty if it can."""
        return self.group.problem if self.group else ""

    @property
    def minimum(self) -> int:
        """Return how many have to be bound at once: what its PodGroup says, or the most that a member says."""
        if self.group is not None:
            return self.group.minimum
        return max(self.said, default=0)

    @property
    def missing(self) -> int:
        """Return how many more have to be bound that ask for GPUs; more than there are if it can't start.

        Members that ask for none, such as a launcher, are there once they are created: they get no cards. Those that
        have done their work count as long as their controller has others: not those of an earlier run.
        """
        if self.problem:
            return len(self.pending) + 1
        done = sum(self.done_of[controller] for controller in self.controllers if controller)
        return self.minimum - len(self.bound) - len(self.without_gpus) - done

    @property
    def rank(self) -> tuple[int, str]:
        """Return the order in which gangs get room: by their highest priority, then by their oldest pod."""
        if self._rank is None:
            waiting = self.pending.values()
            self._rank = (
                -max((m.pod.priority for m in waiting), default=0),
                min((m.since for m in waiting), default=""),
            )
        return self._rank

    @property
    def has_too_few_nodes(self) -> bool:
        """Return whether so many of those that wait are ruled out everywhere that it can't start, whoever leaves."""
        return sum(not member.ruled_out for member in self.pending.values()) < self.missing

    def waits(self, member: Member) -> None:
        """Record that a pod waits, or what it says now."""
        self.waits_no_more(member.pod.uid)
        self.pending[member.pod.uid], self._rank = member, None
        self._count(member.gang.minimum, member.controller, 1)

    def waits_no_more(self, pod_uid: str) -> bool:
        """Record that a pod does not wait; return whether it did."""
        member = self.pending.pop(pod_uid, None)
        if member is not None:
            self._rank = None
            self._count(member.gang.minimum, member.controller, -1)
        return member is not None

    def is_bound(self, pod_uid: str, minimum: int, controller: str) -> None:
        """Record that a pod is bound, and the minimum that it says."""
        self.waits_no_more(pod_uid)
        self.is_bound_no_more(pod_uid)
        self.bound[pod_uid] = minimum, controller
        self._count(minimum, controller, 1)

    def is_bound_no_more(self, pod_uid: str) -> bool:
        """Record that a bound pod is gone; return whether it was one."""
        if pod_uid not in self.bound:
            return False
        self._count(*self.bound.pop(pod_uid), -1)
        return True

    def has_succeeded(self, pod_uid: str, controller: str) -> None:
        """Record that a member has done its work."""
        if pod_uid not in self.done:
            self.done[pod_uid] = controller
            self.done_of[controller] += 1

    def is_done_no_more(self, pod_uid: str) -> bool:
        """Record that such a member is gone; return whether it was one."""
        controller = self.done.pop(pod_uid, None)
        if controller is None:
            return False
        self.done_of[controller] -= 1
        if not self.done_of[controller]:
            del self.done_of[controller]
        return True

    def uids_without_gpus(self, bound: bool) -> Iterator[str]:
        """Yield the UIDs of members that ask for no GPUs, and are bound or not."""
        return (uid for uid, is_bound in self.without_gpus.items() if is_bound is bound)

    def _count(self, minimum: int, controller: str, number: int) -> None:
        counted: tuple[tuple[Counter[Any], Any], ...] = ((self.said, minimum), (self.controllers, controller))
        for counter, key in counted:
            counter[key] += number
            if not counter[key]:
                del counter[key]
