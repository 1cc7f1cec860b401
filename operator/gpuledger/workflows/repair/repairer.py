"""Repairs the findings of an audit. Each step is refused, or changes nothing, where the cluster has moved on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpuledger.formats.objects.devices import DEVICES_ANNOTATION, devices_annotation
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.findings import Adopt, Annotate, AuditFinding, ClearConflict, DeleteCard, Judge
from gpuledger.model.clock import Clock
from gpuledger.model.cluster_snapshot import ClusterSnapshot, PodFacts
from gpuledger.model.errors import GpuledgerError, NotFound
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Holder
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.deadlines import Deadlines
from gpuledger.workflows.journal.journal import Journal
from gpuledger.workflows.pending.trail import Trail
from gpuledger.workflows.release.departures import Departures, ReleaseTimes
from gpuledger.workflows.release.pod_ends import EndReport, end_report_of
from gpuledger.workflows.release.release_pod import PodReleaser
from gpuledger.workflows.repair.adopt import enter_shares
from gpuledger.workflows.resource_claims.claim_ends import ClaimEnds

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
        read_request: Callable[[Json], PodRequest | None],
        read_facts: Callable[[Json], PodFacts],
        release: ReleaseTimes,
        clock: Clock,
    ) -> None:
        self._store = store
        self._read_facts = read_facts
        self._ledger = Ledger()
        for seen in snapshot.cards:
            self._ledger.load(seen.stored)
        self._journal = Journal(ledger=self._ledger, store=store, clock=clock)
        self._releaser = PodReleaser(
            ledger=self._ledger,
            journal=self._journal,
            store=store,
            counts=Counts(),
            read_request=read_request,
            departures=Departures(ends=_ReportedEnds(snapshot), times=release, clock=clock),
            deadlines=Deadlines(clock=clock),
            clock=clock,
            trail=Trail(clock=clock),
            claim_ends=ClaimEnds(store),
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
        except GpuledgerError as error:
            logger.warning("%s of %s is not repaired: %s", finding.kind, finding.pod or finding.card, error)
        except TimeoutError:
            subject = finding.pod or finding.card
            logger.warning(
                "%s of %s is not repaired within %.0f s; run the audit again", finding.kind, subject, TIMEOUT_S
            )
        return False

    async def _adopt(self, adoption: Adopt) -> bool:
        """Enter a pod's shares, unless it needs them no more."""
        pod = adoption.pod
        try:
            facts = self._read_facts(await self._store.pod(pod.namespace, pod.name))
        except NotFound:
            return False
        if facts.pod.uid != pod.uid or facts.needs_cards != adoption.node_name:
            return False
        return await enter_shares(self._journal, adoption)
