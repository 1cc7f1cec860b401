"""Gangs and their members, as far as the watches and kube-scheduler's questions have shown them.

What PodGroups say of gangs: of those kinds that a pod has named, as far as they can be read. A kind that no pod names
costs nothing. One that a pod names, and that the API server does not have, is asked for again every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from attrs import define

from gpuledger.formats.kubernetes.gang import (
    OF_WAY,
    PODGROUPS,
    GroupWords,
    gang_of,
    has_failed_alone,
    name_of,
    pod_group,
)
from gpuledger.formats.kubernetes.pod import (
    controller_uid,
    created_at,
    has_succeeded,
    is_finished,
    later_version,
    pod_identity,
    resource_version,
)
from gpuledger.formats.scheduler import scheduler_words
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.model.clock import BoundedMap, Listeners
from gpuledger.model.errors import BadInput, Refusal
from gpuledger.model.gang import Gang, GangName, GangWay, PodGroup
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeSet
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod
from gpuledger.workflows.context import Component, PodFormats
from gpuledger.workflows.kinds import POD_GROUPS, Subscription
from gpuledger.workflows.reporting import Counts

logger = logging.getLogger(__name__)

NOT_READ_YET = "PodGroups have not been read yet"


class _Known(NamedTuple):
    uid: str
    group: PodGroup


class PodGroups:
    """Knows PodGroups. A kind that no pod names is not read at all."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._known: dict[GangName, _Known] = {}
        self._unread = {words.way: NOT_READ_YET for words in PODGROUPS}  # why a kind is not known; not those that are
        self.named = {words.way: asyncio.Event() for words in PODGROUPS}
        """Set when a pod has named one of a kind."""
        self._followed: set[GangWay] = set()  # also without a pod that names one
        self.on_change = Listeners[[GangName]]()
        """Called with the gang of a PodGroup that has come, has changed, or is gone."""
        self.on_object = Listeners[[GangName, Json]]()
        """Called with each PodGroup as it was seen."""
        self.on_read = Listeners[[GangWay]]()
        """Called when it becomes known of a whole kind that it can be read, or can't."""

    def of(self, name: GangName) -> PodGroup | None:
        """Return a gang's PodGroup; None for a gang that needs none, as its pods' labels say all."""
        words = OF_WAY.get(name.way)
        if words is None:
            return None
        self.named[name.way].set()
        known = self._known.get(name)
        if known is not None:
            return known.group
        why = self._unread.get(name.way)
        text = f"{words.kind} {name} of {words.api_group} "
        return PodGroup(0, problem=text + (f"is not known: {why}" if why else "does not exist"))

    def follow(self, way: GangWay) -> None:
        """Read a kind whether a pod names it or not."""
        self._followed.add(way)
        self.named[way].set()

    def is_followed(self, way: GangWay) -> bool:
        """Return whether a kind is read, whatever pods name."""
        return way in self._followed

    def knows(self, name: GangName) -> bool:
        """Return whether an object of that name is there."""
        return name in self._known

    def observe(self, words: GroupWords, group: Json, gone: bool) -> None:
        """Observe a PodGroup. An invalid one is counted, and its pods wait with its problem as their reason."""
        name, uid = name_of(group, words), str(group["metadata"].get("uid"))
        if gone:
            self._forget(name, uid)
            return
        try:
            said = pod_group(group, words)
        except BadInput as error:
            said = PodGroup(0, problem=str(error))
        before = self._known.get(name)
        self._known[name] = _Known(uid, said)
        self.on_object(name, group)
        if before is not None and before.group == said:
            return
        if said.problem:
            self._counts.bad_input.labels("podgroup").inc()
            logger.error("podgroup %s can't be used: %s", name, said.problem)
        self.on_change(name)

    def listing(self, words: GroupWords) -> Listed:
        """Record the known PodGroups of a kind; return a function that forgets those missing in a later list."""
        before = {known.uid: name for name, known in self._known.items() if name.way is words.way}
        return forgetting(before, lambda uid: self._forget(before[uid], uid), lambda: self._tell(words.way, ""))

    def can_not_be_read(self, words: GroupWords, why: str) -> None:
        """Note why a kind can't be read: the API server has none, or does not allow it."""
        for name in [name for name in self._known if name.way is words.way]:
            del self._known[name]
        self._tell(words.way, why)

    def subscriptions(self, is_named: Callable[[GangWay], bool]) -> list[Subscription]:
        """Return a subscription for each kind; `is_named` returns whether a pod names one of a kind at the moment."""
        return [
            Subscription(
                POD_GROUPS[words.way],
                partial(self.observe, words),
                partial(self.listing, words),
                wanted=self.named[words.way],
                is_wanted=partial(lambda way: self.is_followed(way) or is_named(way), words.way),
                can_not_be_read=partial(self.can_not_be_read, words),
            )
            for words in PODGROUPS
        ]

    def _tell(self, way: GangWay, why: str) -> None:
        before = self._unread.pop(way, "")
        if why:
            self._unread[way] = why
        if before != why:
            self.on_read(way)

    def _forget(self, name: GangName, uid: str) -> None:
        known = self._known.get(name)
        if known is not None and known.uid == uid:
            del self._known[name]
            self.on_change(name)


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
    """Whether kube-scheduler, at its last try, found no node that the pod may go to, whichever pods leave."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class GangState:
    """A gang's members. Others key their records by this object, so a gang is forgotten with its last pod."""

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
    failed_s: float | None = None
    """When a member has failed by itself, by the operator's clock, or left after that: all may be made anew."""
    group: PodGroup | None = None
    """The PodGroup that the gang is named after; None where its pods' labels say all."""

    @property
    def problem(self) -> str:
        """Return why it can never start: its PodGroup does not exist, or is invalid. Empty if it can."""
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
    def order(self) -> tuple[bool, int, str, str]:
        """Return its place in the queue of all who wait."""
        return True, *self.rank, ""

    @property
    def namespace(self) -> str:
        """Return its namespace."""
        return self.name.namespace

    @property
    def priority(self) -> int:
        """Return the highest priority of a member that waits."""
        return -self.rank[0]

    @property
    def has_too_few_nodes(self) -> bool:
        """Return whether too few members have a node they may go to, whichever pods leave."""
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

    def is_done_no_more(self, pod_uid: str) -> None:
        """Record that such a member is gone."""
        controller = self.done.pop(pod_uid, None)
        if controller is not None:
            self.done_of[controller] -= 1
            if not self.done_of[controller]:
                del self.done_of[controller]

    def asks_for_no_gpus(self, pod_uid: str, is_bound: bool) -> bool:
        """Record a member that asks for none; return whether it is new. With it, the gang may be complete."""
        self.waits_no_more(pod_uid)
        is_new = pod_uid not in self.without_gpus
        self.without_gpus[pod_uid] = is_bound
        return is_new

    def uids_without_gpus(self, bound: bool) -> Iterator[str]:
        """Yield the UIDs of members that ask for no GPUs, and are bound or not."""
        return (uid for uid, is_bound in self.without_gpus.items() if is_bound is bound)

    def _count(self, minimum: int, controller: str, number: int) -> None:
        counted: tuple[tuple[Counter[Any], Any], ...] = ((self.said, minimum), (self.controllers, controller))
        for counter, key in counted:
            counter[key] += number
            if not counter[key]:
                del counter[key]


GONE_KEPT = 4_096
"""Pods of which is remembered that they wait no more."""

UNSEEN_S = 30.0
"""A watch shows a pod within moments of kube-scheduler's question for it, unless the pod is gone."""


@define(eq=False, slots=False)
class Members(Component):
    """All gangs that have a pod. Follows bound and pending pods: see observe_cluster.py."""

    _groups: PodGroups

    def __attrs_post_init__(self) -> None:
        self._gangs: dict[GangName, GangState] = {}
        self._of_pod: dict[str, GangName] = {}  # pod UID -> its gang
        self._gone: BoundedMap[str, None] = BoundedMap(GONE_KEPT)
        self._unseen: dict[str, float] = {}  # UID of a pod that only a question has shown -> when, by the clock
        self.on_gone = Listeners[[str, GangState]]()
        """Called with the UID and the gang of a member that waits no more: it is bound, or gone."""

        self.on_newcomer = Listeners[[GangState]]()
        """Called with the gang of a pod that is newly pending."""
        self.on_joined = Listeners[[str]]()
        """Called with the UID of a pod that is seen to be of a gang."""
        self.on_bound = Listeners[[GangState]]()
        """Called with the gang of a member that is seen bound."""
        self.on_done = Listeners[[GangState]]()
        """Called with the gang of a member that is seen to have done its work."""
        self.on_left = Listeners[[str, GangState]]()
        """Called with the UID and the gang of a bound member that is gone, or has failed."""
        self.on_minimum = Listeners[[GangState]]()
        """Called with a gang that may need another number of cards: its PodGroup has come, has changed, or is gone; or
        a member has come that asks for none.
        """
        self._groups.on_change.append(self._group_changes)
        self._groups.on_read.append(lambda way: self._group_changes(*[n for n in self._gangs if n.way is way]))

    def all(self) -> Iterator[GangState]:
        """Yield the gangs."""
        yield from self._gangs.values()

    def waiting(self) -> Iterator[GangState]:
        """Yield the gangs of which not as many are bound as have to be."""
        return (state for state in self._gangs.values() if state.pending and state.missing > 0)

    def refused(self) -> list[Member]:
        """Return the members that wait for their gang, and were refused."""
        return [member for state in self.waiting() for member in state.pending.values() if member.refused]

    def waits(self, name: GangName) -> bool:
        """Return whether a gang waits, and all members that it needs are there."""
        state = self._gangs.get(name)
        return state is not None and len(state.pending) >= state.missing > 0

    def names(self, way: GangWay) -> bool:
        """Return whether a gang is named in this way."""
        return any(name.way is way for name in self._gangs)

    def get(self, name: GangName) -> GangState | None:
        """Return a gang, None if it has no pods."""
        return self._gangs.get(name)

    def named(self, namespace: str, name: str) -> GangState | None:
        """Return a gang by its name, None if it has no pods; of several that are named in different ways, the first."""
        found = (self._gangs.get(GangName(namespace, name, way)) for way in GangWay)
        return next((state for state in found if state), None)

    def of(self, pod_uid: str) -> GangState | None:
        """Return the gang of a pod, None if it has none that is known."""
        name = self._of_pod.get(pod_uid)
        return self._gangs.get(name) if name else None

    def name_of(self, pod_uid: str) -> str:
        """Return the name of a pod's gang in its namespace, empty if it has none."""
        state = self.of(pod_uid)
        return state.name.name if state else ""

    def other_priority(self, pod: Json) -> list[str]:
        """Return a sentence if a pod's priority differs from that of its PodGroup."""
        state = self.of(pod["metadata"]["uid"])
        if state is None or state.group is None or state.name.way is not GangWay.KUBERNETES or state.problem:
            return []
        own, of_group = pod["spec"].get("priorityClassName") or "none", state.group.priority_class or "none"
        if own == of_group:
            return []
        text = f"the pod's priorityClassName is {own}, its PodGroup's {of_group}"
        return [f"{text}: a kube-scheduler that tries groups as a whole does not try this one"]

    def asks(self, pod: Mapping[str, Any], identity: Pod, gang: Gang, request: PodRequest) -> GangState | None:
        """Record a member that waits, by kube-scheduler's question or the watch; return its gang.

        None if it was seen to wait no more: a question can be older than what the watch has shown.
        """
        self._forget_unseen()
        if identity.uid in self._gone:
            return None
        state = self._joined(identity.uid, gang.name)
        known = state.pending.get(identity.uid)
        if known is None:
            self._unseen[identity.uid] = self._clock.now_s()
            state.waits(Member(identity, gang, request, created_at(pod), controller_uid(pod)))
            self.on_newcomer(state)
        elif (known.gang, known.request) != (gang, request):
            state.waits(replace(known, gang=gang, request=request))
        return state

    def _forget_unseen(self) -> None:
        """Forget pods that no watch has shown since kube-scheduler asked for them: they were gone before we listed."""
        while self._unseen and (first := next(iter(self._unseen.items())))[1] + UNSEEN_S <= self._clock.now_s():
            self.forget_pending(first[0])

    def latest_version(self, pod_uid: str, request: PodRequest | None, version: str) -> str:
        """Return the pod's latest resourceVersion from the watch, if its request is unchanged; else this one.

        kube-scheduler itself changes the members of Kubernetes' own groups between Filter and Bind. The version for a
        Binding has to be asked for before the pod's shares are entered.
        """
        state = self.of(pod_uid)
        member = state.pending.get(pod_uid) if state else None
        if member is None or not member.version or member.request != request:
            return version
        return later_version(version, member.version)

    def was_tried(self, pod_uid: str) -> bool:
        """Record that a pod was refused before this process was there; return False if it does not wait for a gang."""
        state = self.of(pod_uid)
        member = state.pending.get(pod_uid) if state and state.missing > 0 else None
        if member is not None:
            member.refused = True
        return member is not None

    def observe_pending(self, pod: Json) -> None:
        """See Follower."""
        uid = pod["metadata"]["uid"]
        gang, request = _gang_and_request(self._formats, pod)
        self._gone.drop(uid)
        if gang is None:
            self._waits_no_more(uid)
        elif request is None:
            state = self._joined(uid, gang.name)
            if state.asks_for_no_gpus(uid, is_bound=False):
                self.on_newcomer(state)
        elif joined := self.asks(pod, pod_identity(pod), gang, request):
            member = joined.pending[uid]
            self._unseen.pop(uid, None)
            member.version, member.ruled_out = resource_version(pod), scheduler_words(pod).rules_out

    def forget_pending(self, pod_uid: str) -> None:
        """See Follower."""
        self._gone.note(pod_uid, None)
        self._waits_no_more(pod_uid)

    def _waits_no_more(self, pod_uid: str) -> None:
        self._unseen.pop(pod_uid, None)
        state = self.of(pod_uid)
        if state is None:
            return
        if state.without_gpus.get(pod_uid) is False:
            del state.without_gpus[pod_uid]
        has_waited = state.waits_no_more(pod_uid)
        self._tidy(state, pod_uid)
        if has_waited:
            self.on_gone(pod_uid, state)

    def known_pending(self) -> set[str]:
        """See Follower."""
        return {uid for state in self._gangs.values() for uid in (*state.pending, *state.uids_without_gpus(False))}

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """See Follower."""
        uid = pod["metadata"]["uid"]
        gang, request = _gang_and_request(self._formats, pod)
        if gang is not None and has_failed_alone(pod) and (known := self.of(uid)) is not None:
            known.failed_s = self._clock.now_s()
        if gang is None or is_finished(pod):
            self.forget_bound(uid, pod)
            if gang is not None and request is not None and has_succeeded(pod):
                (state := self._joined(uid, gang.name)).has_succeeded(uid, controller_uid(pod))
                self.on_done(state)
            return
        state = self._joined(uid, gang.name)
        if request is not None:
            state.is_bound(uid, gang.minimum, controller_uid(pod))
            self.on_bound(state)
        elif state.asks_for_no_gpus(uid, is_bound=True):
            self.on_newcomer(state)

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """See Follower."""
        state = self.of(pod_uid)
        if state is None:
            return
        if state.without_gpus.get(pod_uid):
            del state.without_gpus[pod_uid]
        state.is_done_no_more(pod_uid)
        if state.is_bound_no_more(pod_uid) and (last is None or not has_succeeded(last)):
            self.on_left(pod_uid, state)
        self._tidy(state, pod_uid)

    def known_bound(self) -> set[str]:
        """See Follower."""
        return {
            uid for state in self._gangs.values() for uid in (*state.bound, *state.done, *state.uids_without_gpus(True))
        }

    def _joined(self, pod_uid: str, name: GangName) -> GangState:
        """Return the pod's gang from now on. Any user with rights to edit a pod's labels can change it."""
        before = self.of(pod_uid)
        if before is not None and before.name != name:
            self._waits_no_more(pod_uid)
            self.forget_bound(pod_uid, None)
        self._of_pod[pod_uid] = name
        if before is None or before.name != name:
            self.on_joined(pod_uid)
        state = self._gangs.get(name)
        if state is None:
            state = self._gangs[name] = GangState(name, group=self._groups.of(name))
        return state

    def _group_changes(self, *names: GangName) -> None:
        for name in names:
            if (state := self._gangs.get(name)) is not None:
                state.group = self._groups.of(name)
                self.on_minimum(state)

    def _tidy(self, state: GangState, pod_uid: str) -> None:
        pods = state.pending, state.bound, state.done, state.without_gpus
        if not any(pod_uid in known for known in pods):
            self._of_pod.pop(pod_uid, None)
        if not any(pods):
            self._gangs.pop(state.name, None)


def _gang_and_request(formats: PodFormats, pod: Json) -> tuple[Gang | None, PodRequest | None]:
    """Return a pod's gang, None if it is of none or can't be read; and what it asks for, None if no GPUs."""
    try:
        gang = gang_of(pod)
        return gang, formats.request(pod) if gang else None
    except BadInput:  # kube-scheduler's question is answered with why
        return None, None
