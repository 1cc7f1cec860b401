"""Gangs among the pods of a scene: their members, their places, found as the operator finds them, and their outcome."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpuledger.formats.kubernetes.constraints import NodeRules, PodRules, refused_by_rules
from gpuledger.formats.kubernetes.gang import OF_WAY, described
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import FOREVER, Strength
from gpuledger.model.errors import Reason, WorkLimitExceeded
from gpuledger.model.gang import Gang, GangName, PodGroup
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import Asking, GroupPlanner, Plan


class GangStatus(StrEnum):
    """What became of a gang."""

    PLACED = "placed"
    """As many members as it needs have cards."""
    NO_ROOM = "no-room"
    INCOMPLETE = "incomplete"
    """There are fewer members than it needs."""
    NO_GROUP = "no-group"
    """What says how many it needs is missing, or can't be used."""


class Presence(StrEnum):
    """Why a member is not to be placed."""

    THERE = "there"
    """It has its cards, or asks for none."""
    DONE = "done"
    """It has succeeded: it counts as long as its controller has others."""


@dataclass(frozen=True, slots=True)
class SceneMember:
    """A pod of a gang that is to be placed."""

    uid: str
    request: PodRequest
    rules: PodRules


@dataclass(slots=True)
class SceneGang:
    """A gang: who is to be placed together, and where they were."""

    name: GangName
    group: PodGroup | None
    said: int = 0
    """The minimum that its members say."""
    there: set[str] = field(default_factory=set)  # UIDs of those that are not to be placed
    done: list[str] = field(default_factory=list)  # the controllers of those that have succeeded
    controllers: set[str] = field(default_factory=set)  # those of the others
    waiting: dict[str, SceneMember] = field(default_factory=dict)  # pod UID -> member, in the order of the pods
    places: dict[str, Placement] = field(default_factory=dict)  # pod UID -> where it goes with the others
    tried: bool = False
    fitted: int = 0
    """For how many of those that are missing there was room at once."""
    reasons: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Why a member finds no place beside those that do: reason and sentence -> number of nodes."""

    @property
    def minimum(self) -> int:
        """Return how many have to have cards at once."""
        return self.group.minimum if self.group is not None else self.said

    @property
    def present(self) -> int:
        """Return how many count without being placed."""
        return len(self.there) + sum(controller in self.controllers for controller in self.done)

    @property
    def missing(self) -> int:
        """Return how many more that are; more than wait, if nobody can say."""
        return len(self.waiting) + 1 if self.problem else self.minimum - self.present

    @property
    def problem(self) -> str:
        """Return what is wrong with what says how many it needs; empty if nothing is."""
        return self.group.problem if self.group is not None else ""

    def together(self) -> list[SceneMember]:
        """Return those that are placed together; further ones are pods like any others. None if too few are there."""
        return list(self.waiting.values())[: self.missing] if self.missing <= len(self.waiting) else []

    def why_not(self) -> tuple[str, str]:
        """Return why its members wait, as the operator says it."""
        if self.problem:
            return Reason.GANG.value, self.problem
        lacks = "have been created" if self.missing > len(self.waiting) else "find cards at once"
        return Reason.GANG.value, f"fewer than {self.minimum} members of the pod's gang {lacks}"

    @property
    def status(self) -> GangStatus:
        """Return what became of it."""
        if self.problem:
            return GangStatus.NO_GROUP
        if self.missing <= len(self.places):
            return GangStatus.PLACED
        return GangStatus.INCOMPLETE if self.missing > len(self.waiting) else GangStatus.NO_ROOM

    @property
    def members(self) -> int:
        """Return how many there are."""
        return self.present + len(self.waiting)

    @property
    def found(self) -> int:
        """Return how many are there already, ask for no cards, or find some at once with the others."""
        return self.present + self.fitted


def asking_of(members: Sequence[SceneMember], nodes: Mapping[str, NodeRules]) -> list[Asking]:
    """Return what is to be placed; members that can go to the same nodes have the same object of these."""
    known: list[tuple[PodRules, Collection[str]]] = []
    asking = []
    for member in members:
        names = next((names for rules, names in known if rules == member.rules), None)
        if names is None:
            names = {name for name, node in nodes.items() if not refused_by_rules(member.rules, node)}
            known.append((member.rules, names))
        asking.append(Asking(member.uid, member.request, names))
    return asking


class SceneGangs:
    """All gangs of a scene, by what pods and PodGroups say."""

    def __init__(self, groups: Mapping[GangName, PodGroup]) -> None:
        self._groups = groups
        self._gangs: dict[GangName, SceneGang] = {}
        self._of_pod: dict[str, SceneGang] = {}  # UID of a pod that is to be placed -> its gang

    def expect(self, gang: Gang, uid: str, controller: str, found: SceneMember | Presence) -> None:
        """Note a pod of a gang: what of it is to be placed, or why it is not."""
        state = self._gangs.get(gang.name)
        if state is None:
            state = self._gangs[gang.name] = SceneGang(gang.name, self._group(gang.name))
        if found is Presence.DONE:
            state.done += [controller] if controller else []
            return
        state.said = max(state.said, gang.minimum)
        if controller:
            state.controllers.add(controller)
        if isinstance(found, SceneMember):
            state.waiting[uid] = found
            self._of_pod[uid] = state
        else:
            state.there.add(uid)

    def of(self, pod_uid: str) -> SceneGang | None:
        """Return the gang of a pod that is to be placed."""
        return self._of_pod.get(pod_uid)

    def placed(self) -> list[SceneGang]:
        """Return those with pods that were to be placed, and to be placed together."""
        return [gang for gang in self._gangs.values() if gang.waiting and (gang.minimum or gang.problem)]

    def _group(self, name: GangName) -> PodGroup | None:
        if name.way not in OF_WAY:
            return None
        return self._groups.get(name) or PodGroup(0, problem=f"{described(name)} is missing")


def hold_all(ledger: Ledger, chooser: Chooser, seats: Sequence[Asking]) -> int:
    """Keep places for all, or for none; return for how many there is room.

    What the operator does between its questions is done at once: whether there is room is known then.
    """
    planner = GroupPlanner(ledger, chooser, needs_host=True)
    for request in dict.fromkeys(seat.request for seat in seats):
        chooser.best(request, None)  # so that the ask is known
    while True:
        while chooser.look_further():
            pass
        steps = planner.plan(seats)
        try:
            while True:
                next(steps)
        except StopIteration as found:
            plan: Plan = found.value
            if not plan.lacking:
                plan.sketch.commit(FOREVER, Strength.BINDING)
            return len(seats) - plan.lacking
        except WorkLimitExceeded:
            continue
