"""From slots to cards: what happens when the kubelet gives a container slots, and when the container starts."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.agent.delivery.directory_files import SHARE_DIRECTORY, DirectoryFiles
from gpuledger.agent.delivery.edits import NO_CARDS, VISIBLE, container_edits
from gpuledger.agent.delivery.grant_files import GrantFiles
from gpuledger.agent.driver_limits.limiter import DriverLimits
from gpuledger.agent.isolation.bursts import Bursts, why_no_burst, with_bursts
from gpuledger.agent.isolation.choice import choose, missing, without_hami_core
from gpuledger.agent.isolation.driver import driver_edits, driver_limits, without_vendors_limits
from gpuledger.agent.isolation.hami_core import POLICY_VARIABLE, core_policy_of, opts_out
from gpuledger.agent.isolation.limits import limits
from gpuledger.agent.isolation.ways import GrantedCard, Installed, Isolation
from gpuledger.agent.kubelet.slot_owners import NAME, Owner, SlotOwners, answered_name
from gpuledger.agent.ledger_view import LedgerView
from gpuledger.formats.objects.memory_limit import MEMORY_LIMIT_ANNOTATION
from gpuledger.formats.objects.pod import pod_identity
from gpuledger.formats.runtime.cdi import CardLimit, Grant, VendorDevices, device_name
from gpuledger.model.backoff import Backoff
from gpuledger.model.errors import BadInput, GpuledgerError, NotKnownYet, StartRefused, Unreachable

logger = logging.getLogger(__name__)

Json = Mapping[str, Any]

PATIENCE_S = 20.0
"""How long a start waits for what is not known yet; the kubelet waits 30 s, and then tries again."""

PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0

ISOLATION_ANNOTATION = "gpuledger.dev/isolation"
"""On a pod: how it wishes its shares to be kept apart. A wish of its user."""


@dataclass(frozen=True, slots=True)
class NodeCapabilities:
    """The node's current means to bring cards into containers."""

    isolation: Isolation
    installed: Installed
    vendor: VendorDevices
    priority_resource: str = ""
    bursts: Bursts = Bursts.NEVER


class ContainerStarts:
    """Answers the kubelet's two questions."""

    def __init__(
        self,
        owners: SlotOwners,
        ledger: LedgerView,
        grants: GrantFiles,
        directories: DirectoryFiles,
        capabilities: Callable[[], NodeCapabilities],
        by_driver: DriverLimits,
        with_cdi: bool = True,
        may_run: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Make one; `may_run` returns the UIDs of pods that are gone, and of which something may still run."""
        self._owners, self._ledger, self._grants, self._directories = owners, ledger, grants, directories
        self._capabilities, self._with_cdi, self._may_run = capabilities, with_cdi, may_run
        self._by_driver = by_driver
        self.outcomes: Counter[str] = Counter()  # "started", "refused", "not_yet" -> how often

    def allocate(self, resource: str, slots: frozenset[str]) -> messages.ContainerAllocateResponse:
        """Name what a container will get, without knowing what that is: the name was never used before.

        Nothing is written, so nothing can fail: for the kubelet that would be a refusal, and the pod be lost for good.
        """
        name = f"{min(slots, default='none')}-{secrets.token_hex(8)}"
        self._owners.remember(resource, slots, name)
        if self._with_cdi:
            # A kubelet or a runtime that knows no CDI leaves the device out and says nothing: then an image that asks
            # for all cards, as most do, must get none. The device's edits come later, and count.
            return messages.ContainerAllocateResponse(
                envs={VISIBLE: NO_CARDS}, cdi_devices=[messages.CDIDevice(name=device_name(name))]
            )
        place = str(self._directories.place(name))
        mount = messages.Mount(host_path=place, container_path=SHARE_DIRECTORY, read_only=True)
        return messages.ContainerAllocateResponse(envs={NAME: name}, mounts=[mount])

    async def start(self, resource: str, slots: frozenset[str]) -> None:
        """Have the cards of these slots' container ready. Idempotent: a container that starts again comes by again.

        Raises StartRefused, or NotKnownYet and ApiError if the cards stay unknown for PATIENCE_S.
        """
        outcome = "refused"
        try:
            await self._prepare_patiently(resource, slots)
            outcome = "started"
        except NotKnownYet:
            outcome = "not_yet"
            raise
        finally:
            self.outcomes[outcome] += 1

    async def _prepare_patiently(self, resource: str, slots: frozenset[str]) -> None:
        backoff, why = Backoff(PAUSE_S, LONGEST_PAUSE_S), "no answer"
        asked_for = self._owners.answered(resource, slots)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        return await self._prepare(resource, slots, asked_for)
                    except (NotKnownYet, Unreachable, OSError) as error:
                        why = str(error)
                        logger.info("a container start is retried: %s", why)
                    await asyncio.sleep(backoff.next_s())
        except TimeoutError as error:
            raise NotKnownYet(f"{why}; tried for {PATIENCE_S:g} s") from error

    def remove_left_overs(self) -> None:
        """Remove what was half made for containers that are gone. To be called before anybody serves the kubelet."""
        entries = self._owners.all_entries()
        if entries is not None:
            self._directories.remove_unused(set(filter(None, map(answered_name, entries))))

    async def rebuild(self, resources: Collection[str]) -> None:
        """Have the files of all containers that the kubelet knows, as far as they can be determined."""
        for resource in resources:
            names: dict[frozenset[str], set[str]] = {}  # slots -> names of the containers that have exactly these
            for entry in self._owners.entries(resource) or ():
                names.setdefault(entry.slots, set()).update(filter(None, [answered_name(entry)]))
            known = {grant.name for grant in (*self._grants.all(), *self._directories.all())}
            for slots in (slots for slots, needed in names.items() if not needed <= known):
                try:
                    await self._deliver(await self._owners.find(resource, slots), resource, slots)
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
            return grant.pod_uid != pod.uid and (grant.namespace, grant.pod) == (pod.namespace, pod.name)

        self.forget(is_over)

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
        for container, found in cards.items():
            self._write(owner.pod, container, owner.names[container], resource, slots, found, starts)

    def _write(
        self,
        pod: Json,
        container: str,
        name: str,
        resource: str,
        slots: frozenset[str],
        cards: tuple[GrantedCard, ...],
        starts: bool,
    ) -> None:
        identity, capabilities = pod_identity(pod), self._capabilities()
        wish = str((pod["metadata"].get("annotations") or {}).get(ISOLATION_ANNOTATION, ""))
        environment = _environment(pod, container)
        choice = choose(cards, capabilities.isolation, wish, capabilities.installed)
        if opts_out(environment):
            choice = without_hami_core(choice, cards, capabilities.isolation, capabilities.installed)
        if choice.why_not_as_wished:
            logger.warning("pod %s, %s: %s", identity, ISOLATION_ANNOTATION, choice.why_not_as_wished)
        problem = missing(choice.isolation, capabilities.installed, cards)
        if problem:
            raise NotKnownYet(problem)
        own_directory = ""
        if choice.isolation is Isolation.HAMI_CORE:
            own_directory = str(
                self._directories.own(capabilities.installed.hami_core_directory, identity.uid, container, starts)
            )
        cards = self._with_bursts(pod, container, cards, choice.isolation, capabilities.bursts)
        priority = _limit(pod, container, capabilities.priority_resource)
        installed = capabilities.installed
        policy = core_policy_of(cards, installed.hami_core.core_policy, environment.get(POLICY_VARIABLE, ""))
        kept = limits(choice.isolation, cards, installed, own_directory, priority, policy)
        by_driver: tuple[CardLimit, ...] = ()
        if choice.isolation is Isolation.DRIVER:
            by_driver = driver_limits(cards, guarantees=capabilities.bursts is not Bursts.NEVER)
            kept = driver_edits(name, str(self._by_driver.directory), by_driver)
            self._by_driver.expect(name)
        edits = container_edits(cards, capabilities.vendor, kept)
        if by_driver:
            edits = without_vendors_limits(edits)
        uuids = tuple(card.uuid for card in cards)
        grant = Grant(
            name, identity.uid, identity.namespace, identity.name, container, resource, slots, uuids, edits, by_driver
        )
        if self._with_cdi:
            self._grants.write(grant)
        else:
            self._directories.write(grant, cards)
        logger.info("pod %s, container %s: %s", identity, container, ", ".join(uuids))

    def _with_bursts(
        self, pod: Json, container: str, cards: tuple[GrantedCard, ...], isolation: Isolation, allowed: Bursts
    ) -> tuple[GrantedCard, ...]:
        """Return the cards with the limits that the pod wishes above its shares; without, if that can't be had."""
        try:
            why_not = why_no_burst(pod, isolation, allowed)
            found = with_bursts(cards, pod, container, isolation, allowed)
        except BadInput as error:
            why_not, found = str(error), cards
        if why_not:
            logger.warning("pod %s, %s has no effect: %s", pod_identity(pod), MEMORY_LIMIT_ANNOTATION, why_not)
        return found

    def forget(self, is_over: Callable[[Grant], bool]) -> None:
        """Remove what is over, with everything that belongs to it; but nothing under a container that may run."""
        running = self._may_run()

        def is_left(grant: Grant) -> bool:
            return grant.pod_uid not in running and is_over(grant)

        for grant in [*self._grants.remove(is_left), *self._directories.remove(is_left)]:
            self._directories.remove_own(self._capabilities().installed.hami_core_directory, grant)
            self._by_driver.forget(grant)
            logger.info("pod %s/%s, container %s: over", grant.namespace, grant.pod, grant.container)


def _limit(pod: Json, container: str, resource: str) -> str:
    """Return how much of a resource a container asks for, an empty string for nothing."""
    return str(((_container(pod, container).get("resources") or {}).get("limits") or {}).get(resource, ""))


def _environment(pod: Json, container: str) -> dict[str, str]:
    """Return the variables of a container whose values its pod says itself."""
    return {each["name"]: str(each.get("value") or "") for each in _container(pod, container).get("env") or ()}


def _container(pod: Json, name: str) -> Json:
    spec = pod["spec"]
    listed = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return next((each for each in listed if each["name"] == name), {})
