"""The state of a gang or a workload of Kueue: everything that a person may ask about pods that start together.

Of a gang: whether its pods go together, as Kubernetes says nothing where they do not. Of a workload: whether it is
admitted, and if not, whether it waits for quota or for cards, and for which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from gpuledger.formats.kubernetes.gang import gang_of
from gpuledger.formats.kubernetes.pod import pod_identity, scheduler_of
from gpuledger.formats.kubernetes.workload import why_not_admitted, workload
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import GangName, GangStage, GangWay
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.share import Pod
from gpuledger.reports.explanation import NodeReason

NODES_NAMED = 8
"""In the summary, those where most members fit."""


class Lacking(NamedTuple):
    """Requests of members that find no cards."""

    text: str
    """The request of one of them: "1 card with 40,000 MiB"."""
    members: int
    cards: int


class GangTurn(NamedTuple):
    """A time in which one gang goes before others."""

    name: GangName
    left_s: float
    is_precedence: bool = False
    """Gangs that come after it wait for it; else it is tried alone."""

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        kind = "first" if self.is_precedence else "alone"
        return {"gang": str(self.name), "kind": kind, "secondsLeft": round(self.left_s)}


class MemberState(NamedTuple):
    """A member of a gang."""

    pod: Pod
    state: str
    """running, on-hold, fits, no-cards or waiting, the last for one that is not needed."""
    node_name: str
    """Where it is, or has cards, or would find some; empty for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangReport:
    """All of it. Times are RFC 3339, None where there is none."""

    name: GangName
    source: str
    """The source of its name: a label or an object."""
    stage: GangStage
    summary: str
    minimum: int
    running: int
    waiting: int
    """How many of those that were created wait."""
    missing: int
    """How many more have to be bound that ask for GPUs."""
    priority: int
    since: str | None
    """When the oldest of those that wait was created."""
    without_gpus: int = 0
    """How many members ask for no GPUs: they count once they are created."""
    kept_places: int = 0
    """How many places of members that are gone are kept for those that replace them."""
    pause_s: float = 0.0
    """For how many seconds it is not tried, as a member could not be bound."""
    on_hold: int | None = None
    """For how many of these cards are kept; None where the operator was not asked."""
    standing: int | None = None
    """How many of these stand in Bind."""
    fits: int | None = None
    """How many of these have cards on hold, or would find some at once."""
    turn: GangTurn | None = None
    """Of the gang that is tried alone, or goes first: this one or another."""
    overtaken_by: int = 0
    """How many gangs have started that came after it."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Where members without cards would find some, and how many."""
    lacking: Sequence[Lacking] = ()
    members: Sequence[MemberState] = ()
    members_left_out: int = 0
    example: str = ""
    """Name of a member that finds no cards, if there is one."""
    why: Sequence[NodeReason] = ()
    """Why nodes do not take that one beside those that fit, the nearest first."""
    warnings: Sequence[str] = ()

    @property
    def not_created(self) -> int:
        """Return how many of those that it needs have not been created."""
        return max(self.missing - self.waiting, 0)

    def json(self) -> Json:
        """Return it as it goes over the wire."""
        return {
            "namespace": self.name.namespace,
            "gang": self.name.name,
            "source": self.source or None,
            "state": self.stage.value,
            "summary": self.summary,
            "minimum": self.minimum,
            "running": self.running,
            "waiting": self.waiting,
            "notCreated": self.not_created,
            "withoutGPUs": self.without_gpus,
            "keptPlaces": self.kept_places,
            "pausesForSeconds": round(self.pause_s),
            "onHold": self.on_hold,
            "inBind": self.standing,
            "fits": self.fits,
            "priority": self.priority,
            "since": self.since,
            "turn": None if self.turn is None else self.turn.json(),
            "overtakenBy": self.overtaken_by,
            "fitsOn": [{"node": name, "members": number} for name, number in self.nodes.items()],
            "missing": [{"request": each.text, "members": each.members, "cards": each.cards} for each in self.lacking],
            "members": [
                {"pod": each.pod.name, "podUID": each.pod.uid, "state": each.state, "node": each.node_name or None}
                for each in self.members
            ],
            "membersLeftOut": self.members_left_out,
            "example": self.example or None,
            "nodes": [node.json() for node in self.why],
            "warnings": list(self.warnings),
        }


def gang_summary(
    *,
    name: str,
    stage: GangStage,
    minimum: int,
    missing: int,
    running: int,
    there: int,
    pause_s: float,
    on_hold: int,
    standing: int,
    fits: int,
    nodes: Mapping[str, int],
    lacking: Sequence[Lacking],
    cut_short: bool,
    problem: str = "",
) -> str:
    """Return how far a gang has come in a sentence or two, without the names of other gangs."""
    if problem:
        return f"gang {name}: {problem}"
    begun = f"; {running} run" if running else ""
    if not minimum:
        return f"gang {name}: its PodGroup asks for no members at once, so its pods are placed one by one"
    if stage is GangStage.RUNNING:
        more = f", and {there} more {'waits' if there == 1 else 'wait'}, each for itself" if there else ""
        return f"gang {name}: {running} members run of the {minimum} that have to start together{more}"
    if stage is GangStage.GATHERING:
        return f"gang {name}: {standing} of {missing} members stand in Bind{begun}; none is bound before all of them do"
    if stage is GangStage.ROOM_FOUND:
        return f"gang {name}: cards are kept for all of {missing} members{begun}: kube-scheduler is placing them"
    if stage is GangStage.OTHERS_TURN:
        return f"gang {name}: another gang is tried alone for a while, which has found cards and lacked something else"
    if stage is GangStage.HELD_BACK:
        return f"gang {name}: another gang goes first for a while, which many have overtaken that came after it"
    if stage is GangStage.INCOMPLETE:
        absent = missing - there
        few = "1 has" if absent == 1 else f"{absent} have"
        kept = ", and are kept for a moment" if on_hold else ", and none are kept meanwhile"
        found = f"; {_found(fits, there, nodes, cut_short)}{kept}" if there else ""
        return f"gang {name}: {few} not been created of {minimum} members{begun}{found}"
    text = f"gang {name}: {_found(fits, missing, nodes, cut_short)}{begun}"
    if pause_s:
        return f"{text}; a member could not be bound, so it is tried again in {pause_s:.0f} s"
    if not lacking:
        return f"{text}: kube-scheduler retries them in its turn"
    cards, kinds = sum(each.cards for each in lacking), " and ".join(_each(each) for each in lacking[:2])
    others = ", and others" if len(lacking) > 2 else ""
    return f"{text}. Missing: {cards} card{'' if cards == 1 else 's'}, for {kinds}{others}"


def _found(fits: int, of: int, nodes: Mapping[str, int], cut_short: bool) -> str:
    most = sorted(nodes.items(), key=lambda each: (-each[1], each[0]))
    where = ", ".join(f"{node} {number}" for node, number in most[:NODES_NAMED])
    more = f", and {len(most) - NODES_NAMED} more nodes" if len(most) > NODES_NAMED else ""
    least = "at least " if cut_short and fits < of else ""
    return f"{least}{fits} of {of} members find cards at once" + (f" ({where}{more})" if where else "")


def _each(lacking: Lacking) -> str:
    return (
        f"{'1 member that asks' if lacking.members == 1 else f'{lacking.members} members that ask'} for {lacking.text}"
    )


NAMED = 4
"""Schedulers or priorities that a sentence names."""


def gangs_of(pods: Iterable[JsonMapping]) -> dict[GangName, list[JsonMapping]]:
    """Return the pods of each gang. A pod with unreadable labels is left out: its owner gets a warning."""
    gangs: dict[GangName, list[JsonMapping]] = {}
    for pod in pods:
        try:
            gang = gang_of(pod)
        except BadInput:
            continue
        if gang is not None:
            gangs.setdefault(gang.name, []).append(pod)
    return gangs


def placed_by(pod: JsonMapping) -> tuple[str, int]:
    """Return the properties of a pod that `divided` compares: its scheduler, and its priority."""
    return scheduler_of(pod) or "no scheduler", pod_identity(pod).priority


def divided(name: GangName, pods: Collection[tuple[str, int]], ours: Collection[str]) -> Iterator[str]:
    """Yield a sentence if some of a gang's pods are another scheduler's, and if priorities differ that must not.

    `pods` are as `placed_by` returns them, `ours` the names of our scheduler's profiles. Of a gang without any pods of
    ours: nothing.
    """
    schedulers = Counter(scheduler for scheduler, _ in pods)
    if schedulers.keys().isdisjoint(ours):
        return
    if others := [f"{count} by {name}" for name, count in sorted(schedulers.items()) if name not in ours]:
        yield f"of its {len(pods)} pods, some are placed by others: {_some_of(others)}"
    priorities = sorted({priority for _, priority in pods})
    if name.way is GangWay.KUBERNETES and len(priorities) > 1:
        yield f"its pods have different priorities: {_some_of(list(map(str, priorities)))}"


def _some_of(words: list[str]) -> str:
    return ", ".join(words[:NAMED]) + (", ..." if len(words) > NAMED else "")


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
    """The kind and name of its owner: "Job/train"."""
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
    """Return a workload's report from its own status."""
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
