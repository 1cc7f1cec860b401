"""Repairs the findings of an audit. Each step is refused, or changes nothing, where the cluster has moved on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.objects.devices import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.objects.pod import pod_facts
from gpuledger.formats.resource_claims.allocation import allocation
from gpuledger.formats.resource_claims.listed import ListedClaims
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.findings import (
    Adopt,
    AllocateClaim,
    Annotate,
    AuditFinding,
    ClearConflict,
    DeallocateClaim,
    DeleteCard,
    Judge,
)
from gpuledger.model.clock import Clock
from gpuledger.model.cluster_snapshot import ClusterSnapshot, PodFacts
from gpuledger.model.errors import GpuledgerError, NotFound
from gpuledger.model.seen_claim import SeenClaim
from gpuledger.model.share import Holder, Pod
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.deadlines import Deadlines
from gpuledger.workflows.journal.journal import Journal
from gpuledger.workflows.pending.trail import Trail
from gpuledger.workflows.release.release_deadlines import ReleaseDeadlines, ReleaseTimes
from gpuledger.workflows.release.release_pod import PodReleaser
from gpuledger.workflows.release.termination_reports import EndReport, end_report_of
from gpuledger.workflows.repair.adopt import enter_shares
from gpuledger.workflows.resource_claims.claim_ends import ClaimEnds
from gpuledger.workflows.resource_claims.claim_status import ClaimStatusWriter
from gpuledger.workflows.resource_claims.claim_writer import write_allocation

logger = logging.getLogger(__name__)

Json = dict[str, Any]

AT_ONCE = 32

TIMEOUT_S = 30.0
"""How long a step may take. Longer means that the API server refuses it, or does not answer; the log says which."""


@dataclass(frozen=True, slots=True)
class _ReportedEnds:
    """The nodes' reports of pods that have ended, when the cluster was read."""

    snapshot: ClusterSnapshot

    def end_report(self, node_name: str, pod_uid: str) -> EndReport:
        """Return what is known of a pod that had a share on a node."""
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
        self._store = store
        self._dialects, self._claims = dialects, claims
        self._claim_status = ClaimStatusWriter(store)
        self._ledger = Ledger()
        for seen in snapshot.cards:
            self._ledger.load(seen.stored)
        self._journal = Journal(ledger=self._ledger, store=store, clock=clock)
        self._releaser = PodReleaser(
            ledger=self._ledger,
            journal=self._journal,
            store=store,
            counts=Counts(),
            read_request=lambda pod: pod_request(pod, dialects, claims),
            departures=ReleaseDeadlines(ends=_ReportedEnds(snapshot), times=release, clock=clock),
            deadlines=Deadlines(clock=clock),
            clock=clock,
            trail=Trail(clock=clock),
            claim_ends=ClaimEnds(store, self._ledger, self._claim_status),
        )

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
        """Carry out an action other than judging; tell whether that repaired it."""
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

    async def _facts(self, pod: Pod) -> PodFacts:
        return pod_facts(await self._store.pod(pod.namespace, pod.name), self._dialects, self._claims)

    async def _allocate(self, allocating: AllocateClaim) -> bool:
        """Have a claim's status say what the ledger gives the pod that holds its cards."""
        pod, ref = allocating.pod, allocating.claim
        facts = await self._facts(pod)
        claims = facts.request.claims if facts.request is not None and facts.pod.uid == pod.uid else ()
        claim = next((each for each in claims if each.uid == ref.uid), None)
        held = [each for each in self._ledger.holders_of(pod.uid) if each[0].node_name == facts.node_name]
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
        try:
            facts = await self._facts(pod)
        except NotFound:
            return False
        if facts.pod.uid != pod.uid or facts.needs_cards != adoption.node_name:
            return False
        return await enter_shares(self._journal, adoption)
