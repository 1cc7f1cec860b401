"""Preparing the claims of pods that come to this node, and giving them back after the last pod has ended.

The kubelet asks once for a claim, before the first container of its first pod starts, and again when it has restarted
itself. The answer goes to each container that names the claim. The grants' files say what is prepared.

Between that and the first process of the pod, nothing on the node shows that the pod may still start, and for a pod
that shares a claim the kubelet does not even ask. So a claim is the kubelet's until it gives it back: see `prepared`.

While the ledger is not known yet, the kubelet is kept waiting for a few seconds, before it retries by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

from gpuledger.agent.claims.units import Unit, shared_unit, units_of_pod
from gpuledger.agent.grants.files import GrantFiles
from gpuledger.agent.grants.grants import NO_POD, Grants
from gpuledger.agent.grants.ledger_view import ClaimLedger
from gpuledger.agent.kubelet.dra import ClaimKey, PreparedDevice
from gpuledger.agent.kubelet.pod_resources import ClaimInUse
from gpuledger.agent.kubelet.slot_owners import Pods
from gpuledger.formats.kubernetes.pod import is_finished
from gpuledger.formats.resource_claims.claims import DRIVER, has_claim
from gpuledger.formats.resource_claims.slices import device_name
from gpuledger.formats.runtime.cdi import (
    Grant,
    GrantedClaim,
    claim_grant_name,
    claim_of_name,
    is_name,
    own_name,
)
from gpuledger.formats.runtime.cdi import (
    device_name as runtime_name,
)
from gpuledger.model.clock import Backoff
from gpuledger.model.errors import BadInput, GpuledgerError, NotFound, NotKnownYet, StartRefused, Unreachable
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.share import Pod

logger = logging.getLogger(__name__)

PATIENCE_S = 20.0
"""How long a start waits for what is not known yet; the kubelet waits 30 s, for a claim 45 s, and then tries again."""

PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0

Result = TypeVar("Result")


async def retry_until(attempt: Callable[[], Awaitable[Result]], what: str) -> Result:
    """Return what an attempt comes to, and try again while it raises NotKnownYet, Unreachable or OSError.

    Raises NotKnownYet after PATIENCE_S, and at once what else it raises. `what` is for the log.
    """
    backoff, why = Backoff(PAUSE_S, LONGEST_PAUSE_S), "no answer"
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await attempt()
                except (NotKnownYet, Unreachable, OSError) as error:
                    why = str(error)
                    logger.info("%s is retried: %s", what, why)
                await asyncio.sleep(backoff.next_s())
    except TimeoutError as error:
        raise NotKnownYet(f"{why}; tried for {PATIENCE_S:g} s") from error


class ClaimPreparations:
    """Answers the kubelet's two questions about claims."""

    def __init__(
        self,
        node_name: str,
        ledger: ClaimLedger,
        pods: Pods,
        granting: Grants,
        grants: GrantFiles,
        over: Callable[[], Collection[str]],
    ) -> None:
        """Make it; `over` returns the UIDs of pods of which the agent has reported that nothing is left."""
        self._node_name, self._ledger, self._pods = node_name, ledger, pods
        self._granting, self._grants, self._over = granting, grants, over
        self._given_back: set[str] = set()  # UIDs of claims, also where files are left for now
        self.outcomes: Counter[str] = Counter()  # "prepared", "refused", "not_yet" -> how often

    def prepared(self) -> frozenset[tuple[str, str]]:
        """Return namespace and name of the claims that the kubelet has asked for, and not given back."""
        grants = [(grant, grant.claim) for grant in self._grants.all() if grant.claim is not None]
        self._given_back &= {claim.uid for _, claim in grants}
        return frozenset((grant.namespace, claim.name) for grant, claim in grants if claim.uid not in self._given_back)

    async def prepare(self, claim: ClaimKey) -> list[PreparedDevice]:
        """Have a claim's cards ready; return them as devices. Idempotent.

        Raises StartRefused, or NotKnownYet and ApiError if the cards stay unknown for PATIENCE_S.
        """
        outcome = "refused"
        try:
            found = await retry_until(lambda: self._prepare(claim), f"claim {claim}")
            outcome = "prepared"
        except NotKnownYet:
            outcome = "not_yet"
            raise
        finally:
            self.outcomes[outcome] += 1
        return found

    async def unprepare(self, claim: ClaimKey) -> None:
        """Remove what came with a claim. What a disk does not let go is removed later."""
        self._given_back.add(claim.uid)
        self._granting.forget(lambda grant: grant.claim is not None and grant.claim.uid == claim.uid)

    def give_up(self, names: Collection[str]) -> None:
        """Remove grants, by name, of claims that no pod uses any more, as if the kubelet had given them back."""
        self._given_back |= {each.claim.uid for each in self._grants.all() if each.claim and each.name in names}
        self._granting.forget(lambda grant: grant.name in names)

    async def rebuild(self, in_use: Iterable[ClaimInUse]) -> None:
        """Have the files again of claims whose devices containers may be given when they restart."""
        known = {grant.name for grant in self._grants.all()}
        for claim in in_use:
            for name in filter(None, map(own_name, claim.devices)):
                uid = claim_of_name(name)
                if uid is None or name in known:
                    continue
                try:
                    await self.prepare(ClaimKey(claim.namespace, claim.name, uid))
                except (GpuledgerError, OSError) as error:
                    logger.info("the files of claim %s/%s stay as they are: %s", claim.namespace, claim.name, error)

    async def _prepare(self, claim: ClaimKey) -> list[PreparedDevice]:
        if not is_name(claim_grant_name(claim.uid, "request")):
            raise BadInput(f"claim {claim} has the UID {claim.uid!r}, which can't be a part of a file's name")
        held = await self._ledger.held(claim)
        if held.pod is None:
            pod, holder = NO_POD, Pod(claim.uid, claim.namespace, claim.name)
            units = [shared_unit(held)]
            await self._check_sharers(claim)
        else:
            pod, holder = await self._pod(held.pod), held.pod
            units = units_of_pod(held, pod)
            if holder.uid in self._over():
                raise StartRefused(f"pod {holder} is gone")
        own = [unit for unit in units if any(part.claim.uid == claim.uid for part in unit.parts)]
        self._given_back.discard(claim.uid)
        for unit in own:  # from where the pods were read on nothing waits, so nothing comes between
            self._give(holder, unit, pod)
        self._forget_earlier(claim)
        return [device for unit in own for device in _devices(unit, claim.uid)]

    async def _pod(self, holder: Pod) -> JsonMapping:
        try:
            pod: JsonMapping = await self._pods.pod(holder.namespace, holder.name)
        except NotFound as error:
            raise StartRefused(f"pod {holder} is gone") from error
        if pod["metadata"]["uid"] != holder.uid:
            raise StartRefused(f"pod {holder}, which holds the claim, is gone, and another one has its name")
        return pod

    async def _check_sharers(self, claim: ClaimKey) -> None:
        """Raise NotKnownYet if no pod of this node uses the claim: the last one may have ended."""

        def sharer(pod: JsonMapping) -> str:
            shares = pod["metadata"]["namespace"] == claim.namespace and not is_finished(pod)
            return str(pod["metadata"]["uid"]) if shares and has_claim(pod, claim.name) else ""

        sharers = set(await self._pods.pods_of_node(self._node_name, sharer)) - {""}
        if not sharers.difference(self._over()):
            raise NotKnownYet(f"no pod of this node that uses claim {claim} is known")

    def _give(self, holder: Pod, unit: Unit, pod: JsonMapping) -> None:
        first = unit.first
        claim = GrantedClaim(first.claim.name, first.claim.uid, first.request)
        name = _name(unit)
        known = {grant.name for grant in self._grants.all()}
        grant = Grant(name, holder.uid, holder.namespace, holder.name, unit.name, DRIVER, frozenset(), (), claim=claim)
        self._granting.give(grant, pod, unit.cards, starts=name not in known, containers=unit.containers)

    def _forget_earlier(self, claim: ClaimKey) -> None:
        """Remove what an earlier claim of this name has left: the kubelet takes up none before it is done with that."""

        def is_earlier(grant: Grant) -> bool:
            of_name = grant.claim is not None and (grant.namespace, grant.claim.name) == (claim.namespace, claim.name)
            return of_name and grant.claim is not None and grant.claim.uid != claim.uid

        self._granting.forget(is_earlier)


def _name(unit: Unit) -> str:
    return claim_grant_name(unit.first.claim.uid, unit.first.request)


def _devices(unit: Unit, uid: str) -> Sequence[PreparedDevice]:
    """Return the devices of a claim in a unit. With the first one of each request, its containers get the whole unit.

    The others have nothing of their own: the kubelet tells devices apart by what they bring, where it shows health.
    """
    found, seen = [], set()
    for part in unit.parts:
        if part.claim.uid == uid:
            names = () if part.request in seen else (runtime_name(_name(unit)),)
            seen.add(part.request)
            found.append(PreparedDevice(part.request, device_name(part.card.uuid), names))
    return found
