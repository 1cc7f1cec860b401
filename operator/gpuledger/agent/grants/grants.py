"""From cards to what a container gets of them: by the node's means, and by what its pod wishes.

Slots of the device plugin and claims both end here. The node's means are devices of NVIDIA's container toolkit, MPS,
HAMi-core, and limits by the driver, looked up as they are now. A grant ends as
edits of the container runtime: devices and drivers, names of the cards, limits.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from gpuledger.agent.config import AgentConfig
from gpuledger.agent.grants.files import GrantFiles
from gpuledger.agent.isolation.choice import (
    Bursts,
    GrantedCard,
    Installed,
    Isolation,
    MpsPipes,
    choose,
    driver_edits,
    driver_limits,
    fitting,
    missing,
    mps_edits,
    why_not_together,
    with_bursts,
    without_hami_core,
    without_vendors_limits,
)
from gpuledger.agent.isolation.driver_limits import DriverLimits
from gpuledger.agent.isolation.hami_core import (
    POLICY_VARIABLE,
    HamiCoreLibrary,
    core_policy_of,
    hami_core_edits,
    opts_out,
    own_directory,
    remove_own_directory,
)
from gpuledger.agent.isolation.mps_daemons import running_daemon
from gpuledger.agent.kubelet.slot_owners import NodePods, PodLister
from gpuledger.formats.annotations import MEMORY_LIMIT_ANNOTATION
from gpuledger.formats.kubernetes.node import NVIDIA
from gpuledger.formats.kubernetes.pod import is_finished
from gpuledger.formats.resource_claims.claims import has_claim
from gpuledger.formats.runtime.cdi import (
    FILE_PREFIX,
    CardLimit,
    Grant,
    GrantedPart,
    VendorDevices,
    joined,
    vendor_devices,
)
from gpuledger.kube_api.reads import KubeReads
from gpuledger.model.errors import NotKnownYet, StartRefused
from gpuledger.model.json_object import Json, JsonMapping

VENDOR_KINDS = {NVIDIA: "nvidia.com/gpu"}
"""Vendor -> kind of the CDI devices that its own tools write."""

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""By which NVIDIA's container runtime learns what to bring into a container, where no CDI file says it."""

NO_CARDS = "void"
"""A value of it: bring none, whatever the image asks for."""


def container_edits(cards: Sequence[GrantedCard], vendor: VendorDevices, limits: Json) -> Json:
    """Return all edits for a container with these cards, in the order of their index."""
    return joined([_device_edits(cards, vendor), {"env": _names(cards)}, limits])


def _device_edits(cards: Sequence[GrantedCard], vendor: VendorDevices) -> Json:
    with_tools = [card for card in cards if card.vendor in VENDOR_KINDS]
    found = [vendor.edits(VENDOR_KINDS[card.vendor], _vendor_names(card)) for card in with_tools]
    edits = [each for each in found if each is not None]
    if len(edits) == len(found):
        # Said first, so that the vendor's own word goes before: an image that asks for all cards gets no others.
        return joined([{"env": [f"{VISIBLE}={NO_CARDS}"]}, *edits]) if edits else {}
    return {"env": [f"{VISIBLE}={','.join(card.uuid for card in with_tools if card.vendor == NVIDIA)}"]}


def _vendor_names(card: GrantedCard) -> list[str]:
    """Return a card's names for NVIDIA's toolkit: its UUID, or its number, by its configuration."""
    return [card.uuid] if card.mode == "mig" else [card.uuid, str(card.index)]


def _names(cards: Sequence[GrantedCard]) -> list[str]:
    return [
        f"GPULEDGER_UUIDS={','.join(card.uuid for card in cards)}",
        f"GPULEDGER_MEMORY_MIB={','.join(str(card.memory_mib) for card in cards)}",
        f"GPULEDGER_CORES={','.join(str(card.cores) for card in cards)}",
    ]


logger = logging.getLogger(__name__)


ISOLATION_ANNOTATION = "gpuledger.dev/isolation"
"""On a pod: how it wishes its shares to be kept apart. A wish of its user."""

NO_POD: JsonMapping = {"metadata": {}, "spec": {"containers": []}}
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
        files: GrantFiles,
        capabilities: Callable[[], NodeCapabilities],
        by_driver: DriverLimits,
        may_run: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Make one; `may_run` returns the UIDs of pods that are gone, and of which something may still run."""
        self.files = files
        self._capabilities, self._by_driver, self._may_run = capabilities, by_driver, may_run

    def give(
        self, grant: Grant, pod: JsonMapping, cards: Sequence[GrantedCard], starts: bool = False, containers: int = 1
    ) -> None:
        """Complete a grant, which says only whose it is, and bring it to its container: cards in order of their index.

        `starts`: the container, or the first one of several, starts now; `containers`: so many of a pod use the grant
        at the same time. Raises NotKnownYet if the node lacks what is to keep the shares apart, or if something runs on
        a card that the ledger does not count; StartRefused if that
        can't keep so many to one amount, or for another reason; OSError.
        """
        self._check_room(grant, cards)
        capabilities = self._capabilities()
        environment = _environment(pod, grant.container)
        isolation = self._isolation(grant, pod, cards, capabilities, opts_out(environment))
        problem = why_not_together(isolation, cards, containers, by_several_pods=not grant.of_one_pod)
        if problem:
            raise StartRefused(f"{_owner(grant)}: {problem}")
        held = tuple(cards)  # before what the container may have beyond its share
        cards, why_no_bursts = with_bursts(cards, pod, grant.container, isolation, capabilities.bursts)
        if why_no_bursts:
            logger.warning("%s, %s has no effect: %s", _owner(grant), MEMORY_LIMIT_ANNOTATION, why_no_bursts)
        installed, by_driver, kept = capabilities.installed, tuple[CardLimit, ...](), Json()
        match isolation:
            case Isolation.HAMI_CORE:
                home = installed.hami_core_directory
                own = str(own_directory(home, grant.place, starts))
                priority = _limit(pod, grant.container, capabilities.priority_resource)
                policy = core_policy_of(cards, installed.hami_core.core_policy, environment.get(POLICY_VARIABLE, ""))
                kept = hami_core_edits(cards, home, own, priority, installed.hami_core, policy)
            case Isolation.MPS:
                kept = mps_edits(cards, installed.mps_directory, installed.mps_pipes)
            case Isolation.DRIVER:
                # Pods that share whole cards may all use all of them.
                parts = [card for card in cards if grant.of_one_pod or not card.exclusive]
                by_driver = driver_limits(parts, guarantees=capabilities.bursts is not Bursts.NEVER)
                kept = driver_edits(grant.name, str(self._by_driver.directory), by_driver)
                self._by_driver.expect(grant.name)
        edits = container_edits(cards, capabilities.vendor, kept)
        if by_driver:
            edits = without_vendors_limits(edits)
        shares = tuple(GrantedPart(each.uuid, each.memory_mib, each.cores, each.exclusive) for each in held)
        uuids = tuple(card.uuid for card in cards)
        grant = replace(grant, uuids=uuids, edits=edits, limits=by_driver, parts=shares)
        self.files.write(grant, cards)
        logger.info("%s: %s", _owner(grant), ", ".join(grant.uuids))

    def _check_room(self, grant: Grant, cards: Sequence[GrantedCard]) -> None:
        """Look for a pod that the API server does not know any more, and that leaves too little of a card.

        The ledger counts it, unless etcd was put back: then its share is not there before the operator has asked. Of
        each pod its largest container counts, which is never more than the ledger has for it. Raises NotKnownYet.
        """
        gone = self._may_run()
        for card in cards if gone else ():
            taken: dict[str, GrantedPart] = {}
            for other in self.files.all():
                for part in other.parts if other.pod_uid != grant.pod_uid else ():
                    if part.uuid == card.uuid:
                        largest = taken.get(other.pod_uid, part)
                        taken[other.pod_uid] = max(part, largest, key=lambda each: (each.exclusive, each.memory_mib))
            used_mib = card.memory_mib + sum(part.memory_mib for part in taken.values())
            alone = card.exclusive or any(part.exclusive for part in taken.values())
            if taken.keys() & gone and (alone or used_mib > card.capacity_mib > 0):
                raise NotKnownYet(f"card {card.uuid} is in use by a pod that the API server does not know any more")

    def forget(self, is_over: Callable[[Grant], bool]) -> None:
        """Remove what is over, with everything that belongs to it; but nothing under a container that may run."""
        running = self._may_run()

        def is_left(grant: Grant) -> bool:
            return grant.pod_uid not in running and is_over(grant)

        for grant in self.files.remove(is_left):
            remove_own_directory(self._capabilities().installed.hami_core_directory, grant.place)
            self._by_driver.forget(grant)
            logger.info("%s: over", _owner(grant))

    def _isolation(
        self,
        grant: Grant,
        pod: JsonMapping,
        cards: Sequence[GrantedCard],
        capabilities: NodeCapabilities,
        opts_out: bool,
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


def _owner(grant: Grant) -> str:
    """Return the owner of a grant, for the log."""
    if grant.claim is None:
        return f"pod {grant.namespace}/{grant.pod}, container {grant.container}"
    of_pod = f" of pod {grant.namespace}/{grant.pod}" if grant.of_one_pod else f" in {grant.namespace}"
    return f"claim {grant.claim.name}{of_pod}, {grant.container}"


def _limit(pod: JsonMapping, container: str, resource: str) -> str:
    """Return how much of a resource a container asks for, an empty string for nothing."""
    return str(((_container(pod, container).get("resources") or {}).get("limits") or {}).get(resource, ""))


def _environment(pod: JsonMapping, container: str) -> dict[str, str]:
    """Return the variables of a container whose values its pod says itself."""
    return {each["name"]: str(each.get("value") or "") for each in _container(pod, container).get("env") or ()}


def _container(pod: JsonMapping, name: str) -> JsonMapping:
    """Return a container; an empty one for a claim, which none is called like."""
    return next((each for each in containers_of(pod) if each["name"] == name), {})


def containers_of(pod: JsonMapping) -> list[JsonMapping]:
    """Return all containers of a pod, init containers first."""
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


class OrphanedGrants:
    """Looks, again and again, for grants that no pod has any more, so that the agent can remove their files.

    A kubelet that has just started knows no pods and no claims until the API server has sent them, while their
    containers run: what it does not show is not gone. So the API server has to say it, too. Where this agent has seen
    itself that nothing of a pod is left (`ended_pods.py`), it needs neither: the kubelet names pods without their UIDs,
    and one that has lost its record shows a pod's name for the next one, which may get no grant.
    """

    def __init__(
        self,
        node_name: str,
        grants: Callable[[], Iterable[Grant]],
        lister: PodLister,
        pods: KubeReads,
        ended: Callable[[], Collection[str]],
    ) -> None:
        self._node_name, self._grants, self._lister, self._pods = node_name, grants, lister, pods
        self._ended = ended  # UIDs of pods of which nothing is left
        self._missing: frozenset[str] = frozenset()  # names of grants that the kubelet did not show at the last look

    async def find(self) -> frozenset[str]:
        """Return the names of grants of pods of which nothing is left, or that no pod has.

        The latter is what the kubelet twice has not shown for certain, and no pod at the API server either. Makes no
        request while there are none, and asks the API server only about missing ones. Raises ApiError.
        """
        before, self._missing = self._missing, frozenset()
        ended, grants = self._ended(), list(self._grants())
        over = frozenset(grant.name for grant in grants if grant.claim is None and grant.pod_uid in ended)
        left = [grant for grant in grants if grant.name not in over]
        if not left:
            return over
        missing = _not_shown(left, await self._lister.list())
        self._missing = frozenset(grant.name for grant in missing)
        twice = [grant for grant in missing if grant.name in before]
        if not twice:
            return over

        def used_by(pod: JsonMapping) -> set[str]:
            return set() if is_finished(pod) else {grant.name for grant in twice if uses(pod, grant)}

        used = await self._pods.pods_of_node(self._node_name, used_by)
        return over | frozenset(grant.name for grant in twice).difference(*used)


def _not_shown(grants: Sequence[Grant], listed: NodePods) -> list[Grant]:
    """Return the grants whose claim, or else whose pod, the kubelet does not show.

    A name that several pods have had is shown for the last of them: the others are gone.
    """
    claims = {(claim.namespace, claim.name) for claim in listed.claims}
    pods = {(grant.namespace, grant.pod, grant.pod_uid) for grant in grants if grant.claim is None}
    times = Counter((namespace, name) for namespace, name, _ in pods)

    def is_shown(grant: Grant) -> bool:
        if grant.claim is not None:
            return (grant.namespace, grant.claim.name) in claims
        name = grant.namespace, grant.pod
        return name in listed.pods and times[name] == 1

    return [grant for grant in grants if not is_shown(grant)]


def uses(pod: JsonMapping, grant: Grant) -> bool:
    """Return whether a pod has what a grant brings."""
    metadata = pod["metadata"]
    if grant.claim is None or grant.of_one_pod:
        return bool(metadata["uid"] == grant.pod_uid)
    return metadata["namespace"] == grant.namespace and has_claim(pod, grant.claim.name)


class NodeCapabilitiesReader:
    """Looks at the node whenever a container starts; parses files only when they have changed."""

    def __init__(
        self,
        plan: AgentConfig,
        library: HamiCoreLibrary,
        why_no_driver_limits: Callable[[], str] = lambda: Installed().why_no_driver_limits,
        mps_pipes: Callable[[], MpsPipes] | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        """Make one; `mps_pipes` returns where the MPS daemons are that `gpuledger mps-daemon` runs, if it does."""
        self._plan, self._library, self._proc = plan, library, proc
        self._why_no_driver_limits, self._mps_pipes = why_no_driver_limits, mps_pipes
        self._seen: tuple[tuple[str, int, int], ...] = ()  # path, mtime in ns, size of each file
        self._vendor = VendorDevices()

    def __call__(self) -> NodeCapabilities:
        """Return the present capabilities."""
        plan, installed = self._plan, self._installed()
        isolation = fitting(installed) if plan.isolation is None else plan.isolation
        return NodeCapabilities(isolation, installed, self._vendor_devices(), plan.priority_resource, plan.bursts)

    def _installed(self) -> Installed:
        plan, library = self._plan, self._library.found()
        pipes = self._mps_pipes() if self._mps_pipes is not None else None
        with_mps = pipes is not None or running_daemon(Path(plan.mps_directory) / "pipe", self._proc)
        return Installed(
            hami_core_directory=plan.hami_core_directory if library else "",
            mps_directory=plan.mps_directory if with_mps else "",
            mps_pipes=pipes,
            why_no_driver_limits=self._why_no_driver_limits(),
            hami_core=replace(plan.hami_core, library_directory=library.directory if library else ""),
            why_no_hami_core=self._library.why_not,
        )

    def _vendor_devices(self) -> VendorDevices:
        files = [
            file
            for directory in self._plan.vendor_cdi_directories  # the last one counts, as runtimes have it
            for file in _files(directory)
            if file.suffix in (".json", ".yaml", ".yml") and not file.name.startswith(FILE_PREFIX)
        ]
        seen = []
        for file in files:
            with contextlib.suppress(OSError):
                found = file.stat()
                seen.append((str(file), found.st_mtime_ns, found.st_size))
        if tuple(seen) != self._seen:
            self._seen = tuple(seen)
            self._vendor = vendor_devices(spec for path, _, _ in seen for spec in _specs(Path(path)))
        return self._vendor


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _specs(file: Path) -> list[object]:
    try:
        return [yaml.safe_load(file.read_text())]  # JSON is YAML, too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        logger.warning("CDI file %s can't be read: %s", file, error)
        return []
