"""Answers how far a gang has come, from the ledger of now. Reads nothing, and writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Protocol

from gpuledger.formats.kubernetes.gang import described
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import NotFound
from gpuledger.model.gang import GangStage
from gpuledger.model.request import Shape
from gpuledger.placement.group import Trial
from gpuledger.reports.explanation import NodeReason
from gpuledger.reports.gang import GangReport, MemberState
from gpuledger.workflows.gangs.gang_state import GangState, Member
from gpuledger.workflows.gangs.gang_trial import GangTrials, GangView
from gpuledger.workflows.gangs.members import Members

MEMBERS_NAMED = 256
"""In a report; others are counted."""


class NodeReasons(Protocol):
    """Knows why nodes do not take a pod."""

    async def nodes_beside(
        self, uid: str, shape: Shape, offered: Collection[str] | None, trial: Trial
    ) -> list[NodeReason]:
        """Return why nodes do not take a pod beside those of a trial, the nearest first."""


class GangReporter:
    """Explains gangs. Like a pod's explanation, it is made in slices: kube-scheduler's questions go first."""

    def __init__(self, ledger: Ledger, members: Members, trials: GangTrials, reasons: NodeReasons) -> None:
        self._ledger = ledger
        self._members = members
        self._trials = trials
        self._reasons = reasons

    async def explain(self, namespace: str, name: str) -> GangReport:
        """Return all that there is to say of a gang. Raises NotFound if it has no pod."""
        state = self._members.named(namespace, name)
        if state is None:
            raise NotFound(f"no pod of namespace {namespace} is of a gang {name!r}", 404)
        view = await self._trials.view(state)
        left = {each.pod.uid for each in view.trial.left}
        first = next((member for member in view.asked if member.pod.uid in left), None)
        waiting = (_member_state(member, view, left) for member in state.pending.values())
        members = sorted([*self._running(state), *waiting], key=_by_name)
        minus_priority, since = state.rank
        return GangReport(
            name=state.name,
            source=described(state.name),
            stage=view.stage,
            summary=view.summary,
            minimum=state.minimum,
            missing=view.missing,
            without_gpus=len(state.without_gpus),
            kept_places=view.kept_places,
            pause_s=view.pause_s,
            running=len(state.bound),
            waiting=len(state.pending),
            on_hold=len(view.on_hold),
            standing=view.standing,
            fits=view.fits,
            priority=-minus_priority,
            since=since or None,
            turn=view.turn,
            overtaken_by=view.overtaken_by,
            nodes=view.nodes,
            lacking=view.lacking,
            members=members[:MEMBERS_NAMED],
            members_left_out=max(len(members) - MEMBERS_NAMED, 0),
            example=first.pod.name if first else "",
            why=await self._why(first, view) if first and view.stage is not GangStage.RUNNING else (),
        )

    def _running(self, state: GangState) -> Iterator[MemberState]:
        """Yield those that run, as far as the ledger knows them."""
        for uid in state.bound:
            for card, holder in self._ledger.holders_of(uid)[:1]:
                yield MemberState(holder.pod, "running", card.node_name)

    async def _why(self, member: Member, view: GangView) -> list[NodeReason]:
        """Return why nodes do not take a member. That others of its gang leave them is no help."""
        shape, trial = member.request.shape, view.trial
        nodes = await self._reasons.nodes_beside(member.pod.uid, shape, self._trials.offered(member), trial)
        here = trial.nodes()
        return [replace(node, remedy="" if here[node.name] else node.remedy) for node in nodes]


def _member_state(member: Member, view: GangView, left: Collection[str]) -> MemberState:
    uid = member.pod.uid
    found = view.trial.placed.get(uid)
    if found is not None:
        return MemberState(member.pod, "fits", found.node_name)
    if uid in view.on_hold:
        return MemberState(member.pod, "on-hold", view.on_hold[uid])
    return MemberState(member.pod, "no-cards" if uid in left else "waiting", "")


def _by_name(member: MemberState) -> str:
    return member.pod.name
