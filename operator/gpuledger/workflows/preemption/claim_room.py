"""A preemption's second step: the room that is to become free is listed as claimed, on each of its cards."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta

from gpuledger.formats.kubernetes.pod import LONGEST_GRACE_S, grace_s
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.errors import NotFound
from gpuledger.model.share import DEFAULT_GRACE_S, MAX_HOLDERS, Claim, Holder, HolderState, Pod
from gpuledger.workflows.journal.journal import Journal
from gpuledger.workflows.preemption.find_victims import Victims
from gpuledger.workflows.preemption.pod_lifecycles import PodLifecycles
from gpuledger.workflows.tasks.pauses import gather_all


class RoomClaimer:
    """Lists claims at the API server: any operator can go on from there."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        journal: Journal,
        store: KubeStore,
        lives: PodLifecycles,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._store = store
        self._lives = lives
        self._clock = clock
        self._timeout_s = timeout_s

    async def claim(
        self, pod: Pod, found: Victims, evicted: Collection[str], leaving: Collection[Pod], patience_s: float = 0.0
    ) -> None:
        """List the claims on all cards, for as long as those who are leaving may take, and a while.

        `patience_s` is how long they may take at least, if that is known already.

        Raises what the API server says, or ShareRefused; some cards may have the claim then.
        """
        patience_s = max(patience_s, await self.longest_grace_s(leaving))
        now = self._clock.wall()
        patience_s += max(0.0, self._leaves_by_s(found) - now.timestamp())
        patience_s = min(patience_s, LONGEST_GRACE_S) + self._timeout_s
        until = now + timedelta(seconds=patience_s)
        claims = self._claims(pod, found, evicted, until.strftime("%Y-%m-%dT%H:%M:%SZ"))
        self._ledger.hosts.promise(pod.uid, found.placement.node_name, found.placement.host)
        try:
            await gather_all(map(self._journal.claim, claims))
        finally:
            if not self._ledger.promises.is_made(pod.uid):
                self._ledger.hosts.withdraw(pod.uid)

    def _claims(self, pod: Pod, found: Victims, evicted: Collection[str], deadline: str) -> list[Claim]:
        claims, shares = [], found.placement.shares
        on_none = set(evicted)
        for share in shares:
            entry = self._ledger.entry(share.uuid)
            on_none -= entry.holders.keys() if entry is not None else set()
        others = sorted(on_none)  # of the victims' gangs; listed, so that they leave whoever is active then
        for share in shares:
            entry = self._ledger.entry(share.uuid)
            here = [uid for uid in evicted if entry is not None and uid in entry.holders]
            room = MAX_HOLDERS - len(here)
            victims, others = (*here, *others[:room]), others[room:]
            claims.append(Claim(Holder(pod, share, HolderState.RESERVED, deadline), len(shares), victims))
        return claims

    def _leaves_by_s(self, found: Victims) -> int:
        """Return when those must have ended that leave the cards anyway, in Unix seconds; 0 if there are none."""
        entries = [self._ledger.entry(share.uuid) for share in found.placement.shares]
        return max((self._lives.leaves_s(uid) for entry in entries if entry for uid in entry.holders), default=0)

    async def longest_grace_s(self, pods: Collection[Pod]) -> float:
        """Return how long the slowest of some pods may take to end, in seconds; the default if nothing is known."""
        graces_s = []
        for pod in pods:
            with suppress(NotFound):
                graces_s.append(grace_s(await self._store.pod(pod.namespace, pod.name)))
        return max(graces_s, default=DEFAULT_GRACE_S)
