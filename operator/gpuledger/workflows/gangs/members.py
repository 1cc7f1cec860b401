"""Who belongs to which gang, as far as the watches and kube-scheduler's questions have shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuledger.formats.objects.gang import described, gang_of
from gpuledger.formats.objects.pod import created_at, is_finished, pod_identity, resource_version
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import Gang, GangName, GangWay, PodGroup
from gpuledger.model.listeners import Listeners
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod
from gpuledger.workflows.gangs.pod_groups import PodGroups

Json = dict[str, Any]


@dataclass(slots=True)
class Member:
    """A pod of a gang that has no node yet."""

    pod: Pod
    gang: Gang
    request: PodRequest
    since: str
    node_names: Collection[str] | None = None
    """The nodes that kube-scheduler would take for it, as of its last question; None if it has asked none."""
    refused: bool = False
    """Its last question was answered with no, and it has to be woken to ask again."""
    version: str = ""
    """The pod's resourceVersion, as the watch has shown it last."""


@dataclass(slots=True)
class GangState:
    """A gang's members."""

    name: GangName
    pending: dict[str, Member] = field(default_factory=dict)  # pod UID -> member
    bound: dict[str, int] = field(default_factory=dict)  # pod UID -> the minimum that it says
    without_gpus: dict[str, bool] = field(
        default_factory=dict
    )  # UID of a pod that asks for none -> whether it is bound
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
        return max((*(member.gang.minimum for member in self.pending.values()), *self.bound.values()), default=0)

    @property
    def missing(self) -> int:
        """Return how many more have to be bound; more than there are if it can't start."""
        return len(self.pending) + 1 if self.problem else self.minimum - len(self.bound) - len(self.without_gpus)

    @property
    def rank(self) -> tuple[int, str]:
        """Return the order in which gangs get room: by their highest priority, then by their oldest pod."""
        waiting = self.pending.values()
        return -max((m.pod.priority for m in waiting), default=0), min((m.since for m in waiting), default="")


class Members:
    """All gangs that have a pod. Follows bound and pending pods: see pod_trackers.py."""

    def __init__(self, read_request: Callable[[Json], PodRequest | None], groups: PodGroups) -> None:
        self._read_request = read_request
        self._groups = groups
        self._gangs: dict[GangName, GangState] = {}
        self._of_pod: dict[str, GangName] = {}  # pod UID -> its gang
        self.on_gone = Listeners[[str, GangState]]()
        """Called with the UID and the gang of a member that waits no more: it is bound, or gone."""

        self.on_newcomer = Listeners[[GangState]]()
        """Called with the gang of a pod that is new among those that wait."""
        self.on_bound = Listeners[[GangState]]()
        """Called with the gang of a member that is seen bound."""
        self.on_minimum = Listeners[[GangState]]()
        """Called with a gang that may need another number of cards: its PodGroup has come, has changed, or is gone; or
        a member has come that asks for none.
        """
        groups.on_change.append(self._group_changes)
        groups.on_read.append(self._groups_are_read)

    def all(self) -> Iterator[GangState]:
        """Yield the gangs."""
        yield from self._gangs.values()

    def waits(self, name: GangName) -> bool:
        """Tell whether a gang has members that wait."""
        state = self._gangs.get(name)
        return state is not None and bool(state.pending) and state.missing > 0

    def names(self, way: GangWay) -> bool:
        """Tell whether a gang is named in this way."""
        return any(name.way is way for name in self._gangs)

    def missing(self, name: GangName) -> int:
        """Return how many more of a gang have to be bound; none of one that has no pods."""
        state = self._gangs.get(name)
        return state.missing if state else 0

    def of(self, pod_uid: str) -> GangState | None:
        """Return the gang of a pod, None if it has none that is known."""
        name = self._of_pod.get(pod_uid)
        return self._gangs.get(name) if name else None

    def described(self, pod_uid: str) -> str:
        """Return what names a pod's gang, and how many of its pods start together; empty if it has none."""
        state = self.of(pod_uid)
        if state is None:
            return ""
        many = f"{state.minimum} of its pods start together" if state.minimum else "its pods are placed one by one"
        return described(state.name) + ("" if state.problem else f": {many}")

    def other_priority(self, pod: Json) -> list[str]:
        """Return a sentence if a pod's priority is not that of its PodGroup, though both should state the same."""
        state = self.of(pod["metadata"]["uid"])
        if state is None or state.group is None or state.name.way is not GangWay.KUBERNETES or state.problem:
            return []
        own, of_group = pod["spec"].get("priorityClassName") or "none", state.group.priority_class or "none"
        if own == of_group:
            return []
        text = f"the pod's priorityClassName is {own}, its PodGroup's {of_group}"
        return [f"{text}: a kube-scheduler that tries groups as a whole does not try this one"]

    def asks(self, pod: Mapping[str, Any], identity: Pod, gang: Gang, request: PodRequest) -> GangState:
        """Note that kube-scheduler asks for a member; return its gang."""
        state = self._joined(identity.uid, gang.name)
        known = state.pending.get(identity.uid)
        if known is None:
            state.pending[identity.uid] = Member(identity, gang, request, created_at(pod))
            self.on_newcomer(state)
        else:
            known.gang, known.request = gang, request
        return state

    def latest_version(self, pod_uid: str, request: PodRequest | None, version: str) -> str:
        """Return the resourceVersion of a pod that the watch has shown last, if it still asks for the same; else this.

        kube-scheduler itself changes the members of Kubernetes' own groups between Filter and Bind. What is to count
        for a Binding has to be asked before the pod's shares are entered.
        """
        state = self.of(pod_uid)
        member = state.pending.get(pod_uid) if state else None
        if member is None or not member.version or member.request != request:
            return version
        return max(version, member.version, key=lambda each: int(each or 0))

    def was_tried(self, pod_uid: str) -> bool:
        """Note that a pod was refused before this process was there; return False if it does not wait for a gang."""
        state = self.of(pod_uid)
        member = state.pending.get(pod_uid) if state and state.missing > 0 else None
        if member is not None:
            member.refused = True
        return member is not None

    def observe_pending(self, pod: Json) -> None:
        """See PendingPodTracker."""
        gang, request = self._read(pod)
        uid = pod["metadata"]["uid"]
        if gang is None:
            self.forget_pending(uid)
        elif request is None:
            self._has_no_gpus(uid, gang, is_bound=False)
        else:
            self.asks(pod, pod_identity(pod), gang, request).pending[uid].version = resource_version(pod)

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        state = self.of(pod_uid)
        if state is not None and state.pending.pop(pod_uid, None) is not None:
            self._tidy(state, pod_uid)
            self.on_gone(pod_uid, state)
        elif state is not None and state.without_gpus.get(pod_uid) is False:
            self._forget_without_gpus(state, pod_uid)

    def known_pending(self) -> set[str]:
        """See PendingPodTracker."""
        return {uid for state in self._gangs.values() for uid in (*state.pending, *_without_gpus(state, False))}

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """See BoundPodTracker."""
        uid = pod["metadata"]["uid"]
        gang, request = self._read(pod)
        if gang is None or is_finished(pod):
            self.forget_bound(uid, pod)
            return
        if request is None:
            self._has_no_gpus(uid, gang, is_bound=True)
            return
        state = self._joined(uid, gang.name)
        state.pending.pop(uid, None)
        state.bound[uid] = gang.minimum
        self.on_bound(state)

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """See BoundPodTracker."""
        state = self.of(pod_uid)
        if state is not None and state.bound.pop(pod_uid, None) is not None:
            self._tidy(state, pod_uid)
        elif state is not None and state.without_gpus.get(pod_uid):
            self._forget_without_gpus(state, pod_uid)

    def known_bound(self) -> set[str]:
        """See BoundPodTracker."""
        return {uid for state in self._gangs.values() for uid in (*state.bound, *_without_gpus(state, True))}

    def _read(self, pod: Json) -> tuple[Gang | None, PodRequest | None]:
        """Return a pod's gang and what it asks for; no gang if it is of none, or can't be read.

        A pod without GPUs counts where a PodGroup says how many there have to be: that counts all.
        """
        try:
            gang = gang_of(pod)
            request = self._read_request(pod) if gang else None
        except BadInput:  # kube-scheduler's question is answered with why
            return None, None
        return (None if request is None and gang and gang.name.way is GangWay.LABELS else gang), request

    def _has_no_gpus(self, pod_uid: str, gang: Gang, is_bound: bool) -> None:
        """Note a member that kube-scheduler does not ask about: it waits for nobody."""
        state = self._joined(pod_uid, gang.name)
        is_new = pod_uid not in state.without_gpus
        state.without_gpus[pod_uid] = is_bound
        if is_new:
            self.on_minimum(state)

    def _forget_without_gpus(self, state: GangState, pod_uid: str) -> None:
        del state.without_gpus[pod_uid]
        self._tidy(state, pod_uid)

    def _joined(self, pod_uid: str, name: GangName) -> GangState:
        """Return the gang that a pod is of from now on: whoever may edit its labels can have it change."""
        before = self.of(pod_uid)
        if before is not None and before.name != name:
            self.forget_pending(pod_uid)
            self.forget_bound(pod_uid, None)
        self._of_pod[pod_uid] = name
        state = self._gangs.get(name)
        if state is None:
            state = self._gangs[name] = GangState(name, group=self._groups.of(name))
        return state

    def _group_changes(self, name: GangName) -> None:
        state = self._gangs.get(name)
        if state is not None:
            state.group = self._groups.of(name)
            self.on_minimum(state)

    def _groups_are_read(self, way: GangWay) -> None:
        for name in [name for name in self._gangs if name.way is way]:
            self._group_changes(name)

    def _tidy(self, state: GangState, pod_uid: str) -> None:
        if not any(pod_uid in pods for pods in (state.pending, state.bound, state.without_gpus)):
            self._of_pod.pop(pod_uid, None)
        if not (state.pending or state.bound or state.without_gpus):
            self._gangs.pop(state.name, None)


def _without_gpus(state: GangState, are_bound: bool) -> list[str]:
    return [uid for uid, is_bound in state.without_gpus.items() if is_bound is are_bound]
