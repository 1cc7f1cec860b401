"""Starts of containers: slots become cards, and the kubelet is kept waiting for a few seconds while that can't be.

While the ledger is not known yet, an attempt is repeated here, before the kubelet retries by itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.agent.grants.files import SHARE_DIRECTORY
from gpuledger.agent.grants.grants import NO_CARDS, VISIBLE, Grants
from gpuledger.agent.grants.ledger_view import LedgerView
from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.agent.kubelet.slot_owners import NAME, Owner, SlotOwners, answered_name
from gpuledger.formats.kubernetes.pod import is_finished, pod_identity
from gpuledger.formats.runtime.cdi import (
    Grant,
)
from gpuledger.formats.runtime.cdi import (
    device_name as runtime_name,
)
from gpuledger.model.clock import Backoff
from gpuledger.model.errors import GpuledgerError, NotKnownYet, StartRefused, Unreachable

logger = logging.getLogger(__name__)

PATIENCE_S = 20.0
"""How long a start waits for what is not known yet; the kubelet waits 30 s, for a claim 45 s, and then tries again."""

PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0

Result = TypeVar("Result")


async def retry_until(attempt: Callable[[], Awaitable[Result]], what: str) -> Result:
    """Return the result of an attempt, and try again while it raises NotKnownYet, Unreachable or OSError.

    Raises NotKnownYet after PATIENCE_S, and other errors at once. `what` is for the log.
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


async def counted(attempt: Awaitable[Result], outcomes: Counter[str], done: str) -> Result:
    """Return what an attempt comes to, and count it as `done`; else as "not_yet" or "refused"."""
    outcome = "refused"
    try:
        found = await attempt
        outcome = done
    except NotKnownYet:
        outcome = "not_yet"
        raise
    finally:
        outcomes[outcome] += 1
    return found


class ContainerStarts:
    """Answers the kubelet's two questions."""

    def __init__(self, owners: SlotOwners, ledger: LedgerView, granting: Grants) -> None:
        self._owners, self._ledger, self._granting, self._files = owners, ledger, granting, granting.files
        self.outcomes: Counter[str] = Counter()  # "started", "refused", "not_yet" -> how often

    def allocate(self, resource: str, slots: frozenset[str]) -> messages.ContainerAllocateResponse:
        """Name what a container will get, without knowing what that is: the name was never used before.

        Nothing is written, so nothing can fail: for the kubelet that would be a refusal, and the pod be lost for good.
        """
        name = f"{min(slots, default='none')}-{secrets.token_hex(8)}"
        self._owners.remember(resource, slots, name)
        if self._files.with_cdi:
            # A kubelet or a runtime that knows no CDI leaves the device out and says nothing: then an image that asks
            # for all cards, as most do, must get none. The device's edits come later, and count.
            return messages.ContainerAllocateResponse(
                envs={VISIBLE: NO_CARDS}, cdi_devices=[messages.CDIDevice(name=runtime_name(name))]
            )
        place = str(self._files.place(name))
        mount = messages.Mount(host_path=place, container_path=SHARE_DIRECTORY, read_only=True)
        return messages.ContainerAllocateResponse(envs={NAME: name}, mounts=[mount])

    async def start(self, resource: str, slots: frozenset[str]) -> None:
        """Have the cards of these slots' container ready. Idempotent: a container that starts again comes by again.

        Raises StartRefused, or NotKnownYet and ApiError if the cards stay unknown for PATIENCE_S.
        """
        asked_for = self._owners.answered(resource, slots)
        start = retry_until(lambda: self._prepare(resource, slots, asked_for), "a container start")
        await counted(start, self.outcomes, "started")

    def remove_left_overs(self) -> None:
        """Remove unfinished directories of containers that are gone. To be called before the kubelet is served."""
        entries = self._owners.all_entries()
        if entries is not None:
            self._files.remove_unused(set(filter(None, map(answered_name, entries))))

    async def rebuild(self, resources: Collection[str]) -> None:
        """Have the files of all containers that the kubelet knows, as far as they can be determined."""
        for resource in resources:
            names: dict[frozenset[str], set[str]] = {}  # slots -> names of the containers that have exactly these
            for entry in self._owners.entries(resource) or ():
                names.setdefault(entry.slots, set()).update(filter(None, [answered_name(entry)]))
            known = {grant.name for grant in self._files.all()}
            for slots in (slots for slots, needed in names.items() if not needed <= known):
                try:
                    owner = await self._owners.find(resource, slots)
                    if not is_finished(owner.pod):  # the kubelet's checkpoint has its slots until others need them
                        await self._deliver(owner, resource, slots)
                except (GpuledgerError, OSError) as error:
                    logger.info("the files of slots in use stay as they are: %s", error)

    async def _prepare(self, resource: str, slots: frozenset[str], asked_for: str | None) -> None:
        """Have the cards ready; `asked_for` is what Allocate had answered when the start was asked for."""
        owner = await self._owners.find(resource, slots)
        await self._deliver(owner, resource, slots, starts=True)
        if self._owners.answered(resource, slots) != asked_for:
            # The caller is gone, and its kubelet has forgotten our answer: it would start the container without.
            raise StartRefused("the kubelet has given the slots to another container since it requested this start")
        pod = pod_identity(owner.pod)

        def is_over(grant: Grant) -> bool:
            """Whether it is of a pod that must be gone: its name has come to another one. Its slots say nothing of it.

            A kubelet that has lost its record gives them out again under a container that runs.
            """
            of_name = grant.claim is None and (grant.namespace, grant.pod) == (pod.namespace, pod.name)
            return of_name and grant.pod_uid != pod.uid

        self._granting.forget(is_over)

    async def _deliver(self, owner: Owner, resource: str, slots: frozenset[str], starts: bool = False) -> None:
        cards: dict[str, tuple[GrantedCard, ...]] = {}  # container -> its cards
        refused: list[StartRefused] = []
        for container in owner.names:
            try:
                cards[container] = await self._ledger.cards_of(owner.pod, container, len(slots))
            except StartRefused as error:  # of several containers, one that has its cards may be the one that starts
                refused.append(error)
        if not cards:
            raise refused[0]
        self._owners.confirm(owner, resource, slots)  # from here on nothing waits, so nothing comes between
        pod = pod_identity(owner.pod)
        for container, found in cards.items():
            grant = Grant(owner.names[container], pod.uid, pod.namespace, pod.name, container, resource, slots, ())
            self._granting.give(grant, owner.pod, found, starts)
