"""Bound pods that the ledger does not know, the audit, and the repair.

What a pod has that was bound by another scheduler, or before its cards were lost, is known only from its annotation,
which users can write. So its shares are entered only where a person asks for it, in a migration; what does not fit is
listed on the card as a conflict, and never counted. Until then the cards that it may use take no new pod
(ledger/unaccounted.py): from the moment on in which the pod is seen.

The audit reads twice. Lists are not from one moment, and a cluster never stands still: a share is entered a moment
before its pod is bound, and leaves a moment after it has ended. So a finding counts only if two reads, some seconds
apart, both show it. Cards are read before pods: then a pod that is bound all the while has its holders in the second
read of the cards, or lacks them; and a pod that is missing in the first read is gone for good when its holder is still
there in the second.

Each step of the repair is refused, or changes nothing, where the cluster has moved on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from attrs import define

from gpuledger.configuration.settings import Settings
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation, read_ends
from gpuledger.formats.custom_resource.stored_card import printed_total, stored_card
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.node import node_facts, read_registers
from gpuledger.formats.kubernetes.pod import bound_node, has_ended, is_finished, pod_facts, scheduler_of
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION, ListedClaims, has_claims
from gpuledger.formats.resource_claims.slices import allocation
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.adoption import Adopt, Step, ambiguous_cards, lacks_cards, missing_shares, not_served, plan
from gpuledger.ledger.audit import (
    AllocateClaim,
    Annotate,
    AuditFinding,
    AuditFindingKind,
    ClearConflict,
    DeallocateClaim,
    DeleteCard,
    Judge,
    findings,
)
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Amounts
from gpuledger.model.clock import Clock
from gpuledger.model.errors import BadInput, EventReason, GpuledgerError, NotFound, ShareRefused
from gpuledger.model.json_object import Json
from gpuledger.model.node import ClusterSnapshot, NodeReport, PodFacts, SeenCard
from gpuledger.model.request import SeenClaim
from gpuledger.model.share import Holder, Misfit, Pod, Share
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.context import Component, Context
from gpuledger.workflows.journal.adopting import WHY_LENGTH, OpenCards, enter_shares
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.lifecycles import Deadlines
from gpuledger.workflows.release import EndReport, PodReleaser, ReleaseDeadlines, ReleaseTimes, end_report_of
from gpuledger.workflows.reporting import EventRecorder
from gpuledger.workflows.resource_claims.claims import claim_holders, read_claims
from gpuledger.workflows.resource_claims.writes import ClaimEnds, ClaimStatusWriter, write_allocation
from gpuledger.workflows.tasks import KeyedWorker

logger = logging.getLogger(__name__)


SETTLE_S = 2.0
"""How long a pod may be seen bound before its holders are seen: two watches show them, in any order."""

PODS_AT_ONCE = 16


async def facts_now(store: KubeStore, pod: Pod, read_facts: Callable[[Json], PodFacts]) -> PodFacts | None:
    """Return what matters of a pod as it is now; None if it is gone."""
    found = await store.pod_now(pod)
    return None if found is None else read_facts(found)


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A bound pod that lacks shares, and why they were not entered."""

    pod: Pod
    node_name: str
    why: str


@define(eq=False, slots=False)
class Adopter(Component):
    """Counts the bound pods that lack shares in the ledger, logs each once, and enters them where that is set.

    A pod whose shares could not be entered is looked at again in each full list, and as soon as a card of its node
    opens: the cards of a ledger that is rebuilt come after the pods.
    """

    _release_times: ReleaseTimes

    def __attrs_post_init__(self) -> None:
        self._leaving: dict[str, asyncio.TimerHandle] = {}  # UID of a stranger that is gone -> when it has left
        self._cards = OpenCards(self._ledger)
        self._listed: set[str] = set()  # UIDs of the pods in the list that is being read
        self._suspects: dict[str, Pod] = {}  # pod UID -> pod that is to be looked at
        self._unknown: dict[str, _Unknown] = {}  # pod UID -> pod that lacks shares
        self.worker = KeyedWorker(self._look, PODS_AT_ONCE, self._is_active)
        self._ledger.on_opened.append(self._reconsider)

    def __len__(self) -> int:
        """Return how many bound pods are known to lack shares."""
        return len(self._unknown)

    def observe(self, pod: Json, is_latest: bool = True) -> None:
        """Observe a bound pod of a full list, of any scheduler. A watch may have shown something later of it."""
        self._listed.add(pod["metadata"]["uid"])
        if is_latest:
            self._take(pod)
            if self._is_ours(pod):
                facts = self._formats.facts(pod)
                if self._lacks(facts) or (facts.bad_request and has_claims(pod)):  # its claims may be known soon
                    self._suspect(facts.pod)
                else:
                    self._unknown.pop(facts.pod.uid, None)

    def show(self, pod: Json, gone: bool) -> None:
        """Observe a bound pod that a watch shows, of any scheduler."""
        uid = pod["metadata"]["uid"]
        if gone or is_finished(pod):
            self._ended(uid, may_run=not has_ended(pod))
        else:
            self._take(pod)

    def listed(self) -> None:
        """Record that the list has ended: pods that were not in it need nothing any more."""
        for uid in self._unknown.keys() - self._listed:
            del self._unknown[uid]
        for uid in set(self._ledger.strangers.uids()) - self._listed:
            self._ended(uid, may_run=True)
        for entry in self._ledger.entries_with_misfits():
            for misfit in entry.misfits:
                if misfit.pod.uid not in self._listed or misfit.pod.uid in entry.holders:
                    self._suspect(misfit.pod)
        self._listed.clear()
        self._ledger.strangers.all_seen()

    def observe_card(self, entry: CardEntry) -> None:
        """Record that a card was written: a share that did not fit may fit now. Each is tried again if it does."""
        for misfit in entry.misfits:
            if misfit.pod.uid not in self._suspects and misfit.amounts.fits_in(entry.room().free):
                self._suspect(misfit.pod)

    def _take(self, pod: Json) -> None:
        """Close, in memory, what a pod may use that lacks shares; find out soon whether they can be entered."""
        uid, found = pod["metadata"]["uid"], self._formats.stranger(pod)
        if found is None:
            self._ended(uid, may_run=False)
            return
        known = self._ledger.strangers.find(uid)
        if not self._ledger.strangers.note(found) or found == known:
            return
        if self._ledger.only_counts(found.node_name):
            return  # its plugin has chosen, and no card of it is in the ledger: should one come, it is closed
        if self._is_ours(pod):
            self._suspect(found.pod)
        elif self._ledger.entries_of_node(found.node_name):
            logger.warning(
                "pod %s may have cards of node %s without the ledger: name its scheduler, %s, in extra_scheduler_names",
                found.pod,
                found.node_name,
                scheduler_of(pod),
            )

    def _ended(self, uid: str, may_run: bool) -> None:
        """Record that a pod uses no card any more; soon, if no agent has seen its processes end."""
        found = self._ledger.strangers.find(uid)
        if found is None or (uid in self._leaving and may_run):
            return
        timer = self._leaving.pop(uid, None)
        if timer:
            timer.cancel()
        wait_s = self._release_times.wait_s(found.pod.grace_s) if may_run else 0.0
        if wait_s:
            self._leaving[uid] = self._tasks.after(wait_s, self._ended, uid, False)
            return
        pod = self._ledger.strangers.forget(uid)
        if pod is not None and self._unknown.pop(uid, None) is not None:
            self._suspect(pod)  # a card may list it as a conflict

    def _is_ours(self, pod: Json) -> bool:
        return scheduler_of(pod) in self._settings.scheduler_names

    def _reconsider(self, node_name: str) -> None:
        """Record that a card of a node takes pods now: shares that could not be entered may fit."""
        for unknown in self._unknown.values():
            if unknown.node_name == node_name:
                self._suspect(unknown.pod)

    def _suspect(self, pod: Pod) -> None:
        self._suspects[pod.uid] = pod
        self._tasks.after(SETTLE_S, self.worker.mark, pod.uid)

    def _lacks(self, facts: PodFacts) -> bool:
        if not facts.request or not facts.needs_cards or self._ledger.only_counts(facts.node_name):
            return False
        return lacks_cards(self._held(facts), facts.request)

    def _held(self, facts: PodFacts) -> list[Share]:
        held = self._ledger.holders.of(facts.pod.uid)
        return [holder.share for card, holder in held if card.node_name == facts.node_name]

    async def _look(self, pod_uid: str) -> None:
        pod = self._suspects.get(pod_uid)
        if pod is None:
            return
        facts = await facts_now(self._store, pod, self._formats.facts)
        if facts is not None and self._lacks(facts):
            await self._take_in(facts)
        else:
            self._unknown.pop(pod_uid, None)
            for entry in self._ledger.entries_with_misfits():
                if any(misfit.pod.uid == pod_uid for misfit in entry.misfits):
                    await self._journal.clear_conflict(entry.card.uuid, pod_uid)
        self._suspects.pop(pod_uid, None)

    async def _take_in(self, facts: PodFacts) -> None:
        problem = await self._problem(facts)
        if not problem:
            logger.info(
                "pod %s was bound to node %s without its shares; the operator enters them", facts.pod, facts.node_name
            )
            self._unknown.pop(facts.pod.uid, None)
            return
        unknown = _Unknown(facts.pod, facts.node_name, problem)
        if self._unknown.get(facts.pod.uid) != unknown:
            logger.warning(
                "pod %s is bound to node %s, but its shares are not in the ledger: %s; see `gpuledger audit`",
                facts.pod,
                facts.node_name,
                problem,
            )
            self._unknown[facts.pod.uid] = unknown
            text = f"the ledger has no GPUs for this pod ({problem}): create it anew, or have an administrator run"
            sentence = f"{text} `gpuledger audit`"
            self._event_recorder.post_pod_event_once(facts.pod, EventReason.NOT_IN_LEDGER, sentence, problem)

    async def _problem(self, facts: PodFacts) -> str:
        """Enter what may be entered; return why something was not.

        What a card lists as a conflict was to be entered on request, and is as soon as it fits.
        """
        on_list = self._cards_that_list(facts)
        if not self._settings.adopt_pods and not on_list:
            return "adopt_pods is off"
        if not facts.taken_up:
            return "its kubelet has not accepted it, and no scheduler has bound it"
        try:
            shares = missing_shares(facts, self._held(facts), self._cards)
        except BadInput as error:
            if self._settings.adopt_pods:
                await self._show_ambiguous(facts, str(error))
            return str(error)
        its_own = self._ledger.strangers.cards_of(facts.pod.uid, facts.node_name)
        if its_own is not None and not {share.uuid for share in shares} <= {*its_own, *on_list}:
            return "its node's device plugin can't have given it the cards that its annotation names"
        if not self._settings.adopt_pods and not {share.uuid for share in shares} <= on_list:
            return "adopt_pods is off, and its annotation names other cards than those that list it as a conflict"
        if await enter_shares(self._journal, Adopt(facts.pod, facts.node_name, shares)):
            why = "it was bound without these shares, and names them in its annotation"
            self._trail.note(RecordKind.ADOPTED, facts.pod, facts.node_name, shares, why)
            return ""
        return "they do not all fit; its cards list them as conflicts"

    def _cards_that_list(self, facts: PodFacts) -> set[str]:
        entries = self._ledger.entries_of_node(facts.node_name)
        return {e.card.uuid for e in entries if any(misfit.pod.uid == facts.pod.uid for misfit in e.misfits)}

    async def _show_ambiguous(self, facts: PodFacts, why: str) -> None:
        """List the pod on each card that may be one of its own: an administrator has to look at them."""
        amounts = Amounts(number=1)
        for card in ambiguous_cards(facts, self._cards):
            with suppress(ShareRefused):  # a card lists only so many
                misfit = Misfit(replace(facts.pod, priority=0), amounts, why[:WHY_LENGTH])
                await self._journal.show_conflict(card.uuid, misfit)


AT_ONCE = 32

TIMEOUT_S = 30.0
"""How long a step may take. Longer means that the API server refuses it, or does not answer; the log says which."""


@dataclass(frozen=True, slots=True)
class _ReportedEnds:
    """The nodes' reports of pods that have ended, when the cluster was read."""

    snapshot: ClusterSnapshot

    def end_report(self, node_name: str, pod_uid: str) -> EndReport:
        """Return the report on a pod that had a share on a node."""
        report = self.snapshot.nodes.get(node_name)
        return end_report_of(report.ends if report else None, pod_uid)


class Repairer:
    """Carries out the actions of findings, over the ledger that they were found in."""

    def __init__(
        self,
        store: KubeStore,
        snapshot: ClusterSnapshot,
        dialects: Dialects,
        claims: ListedClaims | None,
        release: ReleaseTimes,
        clock: Clock,
    ) -> None:
        context = Context(store, Settings(), dialects, EventRecorder(store, clock), Leadership(None), clock)
        context.formats.claims = claims
        self._store, self._ledger, self._journal = store, context.ledger, context.journal
        self._claims = claims
        self._facts = context.formats.facts
        self._claim_status = ClaimStatusWriter(store)
        for seen in snapshot.cards:
            self._ledger.load(seen.stored)
        departures = ReleaseDeadlines(ends=_ReportedEnds(snapshot), times=release, clock=clock)
        claim_ends = ClaimEnds(store, self._ledger, self._claim_status)
        self._releaser = PodReleaser(context, departures, Deadlines(clock=clock), claim_ends)

    async def repair(self, found: Sequence[AuditFinding]) -> list[AuditFinding]:
        """Repair the findings that have an action; return those that were repaired."""
        repaired: list[AuditFinding] = []
        for start in range(0, len(found), AT_ONCE):
            batch = found[start : start + AT_ONCE]
            repaired += await self._judge([finding for finding in batch if isinstance(finding.action, Judge)])
            outcomes = await asyncio.gather(*(self._carry_out(finding) for finding in batch))
            repaired += [finding for finding, done in zip(batch, outcomes, strict=True) if done]
        return repaired

    async def _judge(self, found: Sequence[AuditFinding]) -> list[AuditFinding]:
        """Let the releaser judge pods, as the operator does; return the findings whose holder is not as it was."""
        before = {finding.key: self._holder(finding) for finding in found}
        for finding in found:
            if finding.pod:
                self._releaser.recheck(finding.pod.uid)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._releaser.worker.idle()
        except TimeoutError:
            logger.warning("some shares could not be checked within %.0f s; run the audit again later", TIMEOUT_S)
            await self._releaser.worker.stop()
        return [finding for finding in found if self._holder(finding) != before[finding.key]]

    def _holder(self, finding: AuditFinding) -> Holder | None:
        entry = self._ledger.entry(finding.card)
        return entry.holders.get(finding.pod.uid) if entry and finding.pod else None

    async def _carry_out(self, finding: AuditFinding) -> bool:
        """Carry out an action other than judging; return whether that repaired it."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                match finding.action:
                    case Adopt() as adoption:
                        return await self._adopt(adoption)
                    case Annotate(pod, shares):
                        await self._store.annotate_pod(pod, DEVICES_ANNOTATION, devices_annotation(shares))
                        return True
                    case ClearConflict(uuid, pod_uid):
                        await self._journal.clear_conflict(uuid, pod_uid)
                        return True
                    case DeleteCard(stored):
                        with suppress(NotFound):
                            await self._store.delete_allocation(stored.card.object_name, stored.resource_version)
                        return True
                    case AllocateClaim() as allocating:
                        return await self._allocate(allocating)
                    case DeallocateClaim(claim):
                        return await self._deallocate(claim)
        except GpuledgerError as error:
            logger.warning("%s of %s is not repaired: %s", finding.kind, finding.pod or finding.card, error)
        except TimeoutError:
            subject = finding.pod or finding.card
            logger.warning(
                "%s of %s is not repaired within %.0f s; run the audit again", finding.kind, subject, TIMEOUT_S
            )
        return False

    async def _allocate(self, allocating: AllocateClaim) -> bool:
        """Have a claim's status say what the ledger gives the pod that holds its cards."""
        pod, ref = allocating.pod, allocating.claim
        facts = await facts_now(self._store, pod, self._facts)
        if facts is None:
            raise NotFound(f"pod {pod} is gone", 404)
        claims = facts.request.claims if facts.request is not None else ()
        claim = next((each for each in claims if each.uid == ref.uid), None)
        held = [each for each in self._ledger.holders.of(pod.uid) if each[0].node_name == facts.node_name]
        if claim is None or self._claims is None or not held:
            return False
        cards, shares = {card.uuid: card for card, _ in held}, [holder.share for _, holder in held]
        wanted = allocation(claim, facts.node_name, shares, cards, self._claims)
        await write_allocation(self._claim_status, pod, claim, wanted, lambda _: True)
        return True

    async def _deallocate(self, claim: SeenClaim) -> bool:
        """Take back an allocation, as long as the claim names nobody else than it did."""

        def change(status: Mapping[str, Any]) -> Json | None:
            consumers = {each.get("uid") for each in status.get("reservedFor") or ()}
            if not status.get("allocation") or not consumers <= {*claim.consumers}:
                return None
            return {"allocation": None, "reservedFor": None}

        with suppress(NotFound):
            await self._claim_status.change(claim.namespace, claim.name, claim.uid, change)
        return True

    async def _adopt(self, adoption: Adopt) -> bool:
        """Enter a pod's shares, unless it needs them no more."""
        pod = adoption.pod
        facts = await facts_now(self._store, pod, self._facts)
        if facts is None or facts.needs_cards != adoption.node_name:
            return False
        return await enter_shares(self._journal, adoption)


READS_AT_ONCE = 16

ROUNDS = 4
"""How many rounds look for what the repair itself brings up: once a pod's cards are entered its other ones are spare,
and once a card is empty it can be deleted. There are no longer chains; the last round finds nothing to do."""

NOT_ENTERED = "it could not be entered now; see the log for the reason, and `gpuledger audit` for what is left"


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The meaning of resource names on pods and nodes, and timeouts."""

    scheduler_names: Sequence[str]
    dialects: Dialects
    release: ReleaseTimes
    settle_s: float
    """Between the two reads."""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings: `mended` are repaired, `left` are not."""

    repaired: tuple[AuditFinding, ...]
    left: tuple[AuditFinding, ...]


class Auditor:
    """Compares ledger, pods and nodes, and repairs differences."""

    def __init__(self, store: KubeStore, settings: AuditSettings, *, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._claims: ListedClaims | None = None  # as of the last read; None: nobody brings any, or they can't be read

    async def look(self) -> Report:
        """Compare, and change nothing. Raises ApiError, and BadInput if the CRD is another one."""
        _, found = await self._look()
        return Report((), found)

    async def repair(self, adopt: bool) -> Report:
        """Repair what can be repaired, and look again for what is left; `adopt` also enters shares from annotations."""
        repaired: dict[tuple[str, ...], AuditFinding] = {}
        snapshot, found = await self._look()
        for _ in range(ROUNDS):
            repairable = [finding for finding in found if _is_repairable(finding, adopt)]
            if not repairable:
                break
            done = await self._repair(snapshot, repairable)
            repaired |= {finding.key: finding for finding in done}
            snapshot, found = await self._look()
            if not done:
                break
        left = {finding.key for finding in found}
        return Report(tuple(finding for key, finding in repaired.items() if key not in left), found)

    async def migrate(self, scheduler_names: Sequence[str], dry_run: bool) -> tuple[Step, ...]:
        """Return what another system's pods lack in the ledger; unless it is a dry run, enter what can be entered."""
        snapshot = await self._read()
        steps = plan(snapshot, scheduler_names)
        if dry_run:
            return steps
        possible = {step.pod.uid for step in steps if not step.why}
        found = [finding for finding in findings(snapshot) if finding.pod and finding.pod.uid in possible]
        done = await self._repair(snapshot, [finding for finding in found if isinstance(finding.action, Adopt)])
        entered = {finding.pod.uid for finding in done if finding.pod}
        return tuple(step if step.why or step.pod.uid in entered else replace(step, why=NOT_ENTERED) for step in steps)

    async def _repair(self, snapshot: ClusterSnapshot, found: Sequence[AuditFinding]) -> list[AuditFinding]:
        settings = self._settings
        repairer = Repairer(
            store=self._store,
            snapshot=snapshot,
            dialects=settings.dialects,
            claims=self._claims,
            release=settings.release,
            clock=self._clock,
        )
        return await repairer.repair(found)

    # Reading.

    async def _look(self) -> tuple[ClusterSnapshot, tuple[AuditFinding, ...]]:
        snapshot = await self._read()
        found = self._findings(snapshot)
        if found:
            before = {finding.key for finding in found}
            await asyncio.sleep(self._settings.settle_s)
            snapshot = await self._read()
            found = tuple(finding for finding in self._findings(snapshot) if finding.key in before)
        return snapshot, found

    def _findings(self, snapshot: ClusterSnapshot) -> tuple[AuditFinding, ...]:
        return tuple(self._of_others(finding, snapshot) for finding in findings(snapshot))

    def _of_others(self, finding: AuditFinding, snapshot: ClusterSnapshot) -> AuditFinding:
        """Return a finding about a pod of another scheduler as one that only a person can mend: in the settings."""
        pod = snapshot.pods.get(finding.pod.uid) if finding.pod else None
        if pod is None or pod.scheduler_name in self._settings.scheduler_names or not _is_missing(finding):
            return finding
        return replace(finding, detail=f"{finding.detail}; {not_served(pod.scheduler_name)}", action=None)

    async def _read(self) -> ClusterSnapshot:
        cards = [
            SeenCard(stored_card(allocation), printed_total(allocation))
            async for page in self._store.allocations()
            for allocation in page
        ]
        nodes: dict[str, NodeReport] = {}
        are_served = False
        async for page in self._store.nodes():
            nodes |= {node["metadata"]["name"]: self._report(node) for node in page}
            are_served = are_served or any(map(_serves_claims, page))
        pods, with_claims = await self._read_pods({seen.stored.card.node_name for seen in cards})
        claims = await self._read_claims(cards) if with_claims or are_served or _names_claims(cards) else None
        pods |= {each.pod.uid: each for each in map(self._facts, with_claims)}
        for other in await asyncio.gather(*(self._read_pod(pod) for pod in _named(cards) if pod.uid not in pods)):
            if other is not None:
                pods[other.pod.uid] = other
        if claims is not None:
            claims = {claim.uid: await self._with_users(claim, pods) for claim in claims.values()}
        return ClusterSnapshot(tuple(cards), nodes, pods, self._clock.wall(), claims)

    async def _read_pods(self, ours: Collection[str]) -> tuple[dict[str, PodFacts], list[Json]]:
        """Return what matters of the bound pods, by UID; and those of which more has to be known: that bring claims."""
        pods: dict[str, PodFacts] = {}
        with_claims: list[Json] = []
        names = self._settings.scheduler_names
        async for page in self._store.bound_pods(names):
            found = [pod for pod in page if scheduler_of(pod) in names or bound_node(pod) in ours]
            found = [pod for pod in found if bound_node(pod)]
            with_claims += filter(has_claims, found)
            facts = [self._facts(pod) for pod in found if not has_claims(pod)]
            pods |= {each.pod.uid: each for each in facts}
        return pods, with_claims

    async def _read_claims(self, cards: Sequence[SeenCard]) -> dict[str, SeenClaim] | None:
        """Note what there is of claims; return, by UID, those that have cards of ours, or that the ledger names."""
        ledger = [seen.stored for seen in cards]
        read = await read_claims(self._store, ledger)
        self._claims = read[0] if read else None
        if read is None:
            return None
        named = claim_holders(ledger)
        return {claim.uid: claim for claim in read[1] if claim.cards or claim.uid in named}

    async def _with_users(self, claim: SeenClaim, pods: Mapping[str, PodFacts]) -> SeenClaim:
        """Return a claim with those of its pods that live."""
        named = zip(claim.consumers, claim.consumer_names, strict=True)
        asked = [Pod(uid, claim.namespace, name) for uid, name in named if uid not in pods]
        others = [each for each in await asyncio.gather(*map(self._read_pod, asked)) if each is not None]
        there = [*(pods[uid] for uid in claim.consumers if uid in pods), *others]
        return replace(claim, users=tuple(each.pod.uid for each in there if not each.finished))

    def _facts(self, pod: Json) -> PodFacts:
        return pod_facts(pod, self._settings.dialects, self._claims)

    def _report(self, node: Json) -> NodeReport:
        ends, problems = None, tuple[str, ...]()
        try:
            ends = read_ends(node)
        except BadInput as error:
            problems = (str(error),)
        try:
            facts = node_facts(node, self._settings.dialects)
            inventory = read_registers(facts)
        except BadInput as error:
            return NodeReport(None, (*problems, str(error)), ends)
        only_counts = facts.takes_pods and not facts.registers
        return NodeReport(inventory.cards, (*problems, *inventory.problems), ends, only_counts)

    async def _read_pod(self, pod: Pod) -> PodFacts | None:
        """Return a pod that the ledger names and the list did not have; None if it is gone."""
        async with self._turns:
            return await facts_now(self._store, pod, self._facts)


def _is_missing(finding: AuditFinding) -> bool:
    return finding.kind in (AuditFindingKind.NOT_ENTERED, AuditFindingKind.PARTLY_ENTERED)


def _serves_claims(node: Json) -> bool:
    return (node["metadata"].get("annotations") or {}).get(SERVES_CLAIMS_ANNOTATION) == "true"


def _names_claims(cards: Iterable[SeenCard]) -> bool:
    return bool(claim_holders(seen.stored for seen in cards))


def _named(cards: Iterable[SeenCard]) -> set[Pod]:
    """Return the pods that the cards name."""
    holders = {holder.pod for seen in cards for holder in seen.stored.holders or () if not holder.is_seat}
    return holders | {misfit.pod for seen in cards for misfit in seen.stored.misfits}


def _is_repairable(finding: AuditFinding, adopt: bool) -> bool:
    return finding.action is not None and (adopt or not isinstance(finding.action, Adopt))
