"""From cards to what a container gets of them: by the node's means, and by what its pod wishes.

Whoever has found out which cards a container may have comes by here: for the slots of a device plugin, and for claims.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuledger.agent.delivery.directory_files import DirectoryFiles
from gpuledger.agent.delivery.edits import container_edits
from gpuledger.agent.delivery.grant_files import GrantFiles
from gpuledger.agent.driver_limits.limiter import DriverLimits
from gpuledger.agent.isolation.bursts import Bursts, why_no_burst, with_bursts
from gpuledger.agent.isolation.choice import choose, missing, without_hami_core
from gpuledger.agent.isolation.driver import driver_edits, driver_limits, without_vendors_limits
from gpuledger.agent.isolation.hami_core import POLICY_VARIABLE, core_policy_of, opts_out
from gpuledger.agent.isolation.kinds import GrantedCard, Installed, Isolation
from gpuledger.agent.isolation.limits import limits
from gpuledger.agent.isolation.together import why_not_together
from gpuledger.formats.objects.memory_limit import MEMORY_LIMIT_ANNOTATION
from gpuledger.formats.runtime.cdi import CardLimit, Grant, VendorDevices
from gpuledger.model.errors import BadInput, NotKnownYet, StartRefused

logger = logging.getLogger(__name__)

Json = Mapping[str, Any]

ISOLATION_ANNOTATION = "gpuledger.dev/isolation"
"""On a pod: how it wishes its shares to be kept apart. A wish of its user."""

NO_POD: Json = {"metadata": {}, "spec": {"containers": []}}
"""In place of a pod, where several have the same cards: it wishes nothing."""


@dataclass(frozen=True, slots=True)
class NodeCapabilities:
    """The node's current means to bring cards into containers."""

    isolation: Isolation
    installed: Installed
    vendor: VendorDevices
    priority_resource: str = ""
    bursts: Bursts = Bursts.NEVER


class Grants:
    """Gives cards to containers, and takes back what belongs to those that are over."""

    def __init__(
        self,
        grants: GrantFiles,
        directories: DirectoryFiles,
        capabilities: Callable[[], NodeCapabilities],
        by_driver: DriverLimits,
        with_cdi: bool = True,
        may_run: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Make one; `may_run` returns the UIDs of pods that are gone, and of which something may still run."""
        self._grants, self._directories, self._by_driver = grants, directories, by_driver
        self._capabilities, self._with_cdi, self._may_run = capabilities, with_cdi, may_run

    def give(
        self, grant: Grant, pod: Json, cards: Sequence[GrantedCard], starts: bool = False, containers: int = 1
    ) -> None:
        """Complete a grant, which says only whose it is, and bring it to its container: cards in order of their index.

        `starts`: the container, or the first one of several, starts now; `containers`: so many of a pod use the grant
        at the same time. Raises NotKnownYet if the node lacks what is to keep the shares apart; StartRefused if that
        can't keep so many to one amount, or for another reason; OSError.
        """
        capabilities = self._capabilities()
        environment = _environment(pod, grant.container)
        isolation = self._isolation(grant, pod, cards, capabilities, opts_out(environment))
        problem = why_not_together(isolation, cards, containers, by_several_pods=not grant.of_one_pod)
        if problem:
            raise StartRefused(f"{_owner(grant)}: {problem}")
        installed, own_directory = capabilities.installed, ""
        if isolation is Isolation.HAMI_CORE:
            own_directory = str(self._directories.own(installed.hami_core_directory, grant.place, starts))
        cards = _with_bursts(grant, pod, cards, isolation, capabilities.bursts)
        priority = _limit(pod, grant.container, capabilities.priority_resource)
        policy = core_policy_of(cards, installed.hami_core.core_policy, environment.get(POLICY_VARIABLE, ""))
        kept = limits(isolation, cards, installed, own_directory, priority, policy)
        by_driver: tuple[CardLimit, ...] = ()
        if isolation is Isolation.DRIVER:
            # Pods that share whole cards may all use all of them.
            parts = [card for card in cards if grant.of_one_pod or not card.exclusive]
            by_driver = driver_limits(parts, guarantees=capabilities.bursts is not Bursts.NEVER)
            kept = driver_edits(grant.name, str(self._by_driver.directory), by_driver)
            self._by_driver.expect(grant.name)
        edits = container_edits(cards, capabilities.vendor, kept)
        if by_driver:
            edits = without_vendors_limits(edits)
        grant = replace(grant, uuids=tuple(card.uuid for card in cards), edits=edits, limits=by_driver)
        if self._with_cdi:
            self._grants.write(grant)
        else:
            self._directories.write(grant, cards)
        logger.info("%s: %s", _owner(grant), ", ".join(grant.uuids))

    def forget(self, is_over: Callable[[Grant], bool]) -> None:
        """Remove what is over, with everything that belongs to it; but nothing under a container that may run."""
        running = self._may_run()

        def is_left(grant: Grant) -> bool:
            return grant.pod_uid not in running and is_over(grant)

        for grant in [*self._grants.remove(is_left), *self._directories.remove(is_left)]:
            self._directories.remove_own(self._capabilities().installed.hami_core_directory, grant)
            self._by_driver.forget(grant)
            logger.info("%s: over", _owner(grant))

    def _isolation(
        self, grant: Grant, pod: Json, cards: Sequence[GrantedCard], capabilities: NodeCapabilities, opts_out: bool
    ) -> Isolation:
        """Return how these cards are kept apart from others' shares. Raises NotKnownYet if the node can't."""
        wish = str((pod["metadata"].get("annotations") or {}).get(ISOLATION_ANNOTATION, ""))
        choice = choose(cards, capabilities.isolation, wish, capabilities.installed)
        if opts_out:
            choice = without_hami_core(choice, cards, capabilities.isolation, capabilities.installed)
        if choice.why_not_as_wished:
            logger.warning("%s, %s: %s", _owner(grant), ISOLATION_ANNOTATION, choice.why_not_as_wished)
        problem = missing(choice.isolation, capabilities.installed, cards)
        if problem:
            raise NotKnownYet(problem)
        return choice.isolation


def _with_bursts(
    grant: Grant, pod: Json, cards: Sequence[GrantedCard], isolation: Isolation, allowed: Bursts
) -> tuple[GrantedCard, ...]:
    """Return the cards with the limits that the pod wishes above its shares; without, if that can't be had."""
    try:
        why_not = why_no_burst(pod, isolation, allowed)
        found = with_bursts(cards, pod, grant.container, isolation, allowed)
    except BadInput as error:
        why_not, found = str(error), tuple(cards)
    if why_not:
        logger.warning("%s, %s has no effect: %s", _owner(grant), MEMORY_LIMIT_ANNOTATION, why_not)
    return found


def _owner(grant: Grant) -> str:
    """Return whose a grant is, for the log."""
    if grant.claim is None:
        return f"pod {grant.namespace}/{grant.pod}, container {grant.container}"
    of_pod = f" of pod {grant.namespace}/{grant.pod}" if grant.of_one_pod else f" in {grant.namespace}"
    return f"claim {grant.claim.name}{of_pod}, {grant.container}"


def _limit(pod: Json, container: str, resource: str) -> str:
    """Return how much of a resource a container asks for, an empty string for nothing."""
    return str(((_container(pod, container).get("resources") or {}).get("limits") or {}).get(resource, ""))


def _environment(pod: Json, container: str) -> dict[str, str]:
    """Return the variables of a container whose values its pod says itself."""
    return {each["name"]: str(each.get("value") or "") for each in _container(pod, container).get("env") or ()}


def _container(pod: Json, name: str) -> Json:
    """Return a container; an empty one for a claim, which none is called like."""
    spec = pod["spec"]
    listed = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return next((each for each in listed if each["name"] == name), {})
