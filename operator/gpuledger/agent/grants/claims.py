"""ResourceClaims on this node: what the kubelet is given for them, and what the Node says of that.

The kubelet asks once for a claim, before the first container of its first pod starts, and again when it has restarted
itself. The answer goes to each container that names the claim. The grants' files say what is prepared.

Between that and the first process of the pod, nothing on the node shows that the pod may still start, and for a pod
that shares a claim the kubelet does not even ask. So a claim is the kubelet's until it gives it back: see `prepared`.

A container runtime puts the edits of several devices one over the other: of two limits for a container's first card,
the last one would stay. So a container gets one device of ours, whatever it names, and requests that the same
containers name are one. Kubernetes matches by the request, never by its subrequest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from gpuledger.agent.grants.grants import NO_POD, Grants, containers_of, uses
from gpuledger.agent.grants.ledger_view import HeldClaims, HeldPart, LedgerView
from gpuledger.agent.grants.starts import counted, retry_until
from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.agent.kubelet.dra import ClaimKey, DraPlugin, PreparedDevice
from gpuledger.agent.kubelet.slot_owners import ClaimInUse, PodLister
from gpuledger.agent.metrics import counter, gauge
from gpuledger.agent.node_entry import NodeAnnotation
from gpuledger.formats.kubernetes.pod import is_finished
from gpuledger.formats.resource_claims.claims import DRIVER, has_claim
from gpuledger.formats.resource_claims.slices import device_name
from gpuledger.formats.runtime.cdi import Grant, GrantedClaim, claim_grant_name, claim_of_name, is_name, own_name
from gpuledger.formats.runtime.cdi import device_name as runtime_name
from gpuledger.kube_api.reads import KubeReads
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput, GpuledgerError, NotFound, NotKnownYet, StartRefused
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.share import Pod

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unit:
    """Requests that are one device."""

    parts: tuple[HeldPart, ...]
    containers: int = 1
    """How many of its pod's containers use it at the same time, at most."""

    @property
    def first(self) -> HeldPart:
        """The part that gives the unit its name, whichever of its claims is asked for."""
        return self.parts[0]

    @property
    def name(self) -> str:
        """The unit's requests, as the ledger names them."""
        return "+".join(dict.fromkeys(part.entry for part in self.parts))

    @property
    def cards(self) -> tuple[GrantedCard, ...]:
        """Its cards in the order of their index: of a card that several requests share, what they have together."""
        found: dict[str, GrantedCard] = {}
        for part in self.parts:
            card, before = part.card, found.get(part.card.uuid)
            found[card.uuid] = card if before is None else _together(before, card)
        return tuple(sorted(found.values(), key=lambda card: (card.index, card.uuid)))


def shared_unit(held: HeldClaims) -> Unit:
    """Return the whole of a claim as one: pods come and go that share it, and each names what it likes of it."""
    return Unit(_in_order(held.parts))


def units_of_pod(held: HeldClaims, pod: JsonMapping) -> list[Unit]:
    """Return the units of a pod.

    Raises StartRefused if a container would get several; or cards by its own resources, or by a claim that pods share,
    as well.
    """
    uses = _users(held, pod)
    grouped: dict[frozenset[str] | tuple[str, str], list[HeldPart]] = {}
    for part in _in_order(held.parts):
        containers = frozenset(name for name, requests in uses.items() if _key(part) in requests)
        grouped.setdefault(containers or _key(part), []).append(part)
    of_others = held.containers | _users_of_shared(held, pod)
    for container, requests in uses.items():
        of_it = [parts for parts in grouped.values() if any(_key(part) in requests for part in parts)]
        if len(of_it) > 1 or container in of_others:
            raise StartRefused(_refusal(container, of_it, container in of_others))
    return [Unit(tuple(parts), _at_once(pod, users)) for users, parts in grouped.items()]


def _users(held: HeldClaims, pod: JsonMapping) -> dict[str, set[tuple[str, str]]]:
    """Return the names of containers that use claims -> the claims' names in the pod, and their requests."""
    found: dict[str, set[tuple[str, str]]] = {}
    for container in containers_of(pod):
        for each in (container.get("resources") or {}).get("claims") or ():
            named = {
                _key(part)
                for part in held.parts
                if part.pod_claim == each["name"] and each.get("request") in (None, "", part.request)
            }
            if named:
                found.setdefault(container["name"], set()).update(named)
    return found


def _at_once(pod: JsonMapping, names: Iterable[str]) -> int:
    """Return how many of these containers can run at the same time: ordinary init containers run before, one by one."""
    early = [each for each in pod["spec"].get("initContainers") or () if each["name"] in names]
    sidecars: int = sum(each.get("restartPolicy") == "Always" for each in early)
    late = sum(each["name"] in names for each in pod["spec"]["containers"])
    return max(sidecars + late, sidecars + 1 if sidecars < len(early) else 0)


def _users_of_shared(held: HeldClaims, pod: JsonMapping) -> frozenset[str]:
    """Return the names of containers that use claims that pods share."""
    given = pod["spec"].get("resourceClaims") or ()
    names = {each["name"] for each in given if each.get("resourceClaimName") in held.shared}
    return frozenset(
        container["name"]
        for container in containers_of(pod)
        if any(each["name"] in names for each in (container.get("resources") or {}).get("claims") or ())
    )


def _in_order(parts: Iterable[HeldPart]) -> tuple[HeldPart, ...]:
    return tuple(sorted(parts, key=lambda part: (part.entry, part.card.index, part.card.uuid)))


def _key(part: HeldPart) -> tuple[str, str]:
    return part.pod_claim, part.request


def _together(one: GrantedCard, other: GrantedCard) -> GrantedCard:
    cores = one.cores + other.cores if one.cores and other.cores else 0  # what is not limited stays so
    return replace(one, memory_mib=one.memory_mib + other.memory_mib, cores=cores)


def _refusal(container: str, several: Sequence[Sequence[HeldPart]], of_others: bool) -> str:
    names = ", ".join(Unit(tuple(parts)).name for parts in several)
    if of_others:
        return (
            f"container {container} gets GPUs by {names}, and by its own resources or a claim that pods share: a node "
            "can't keep it to both of these shares at once. Let it ask in one way"
        )
    return (
        f"container {container} names {names}, of which other containers name only some: a node can't keep it to all "
        "of these shares at once. Let each container name one request, or let all of them name the same ones"
    )


class ClaimService:
    """The claims of one node. Where they are not served, it says so on the Node, and does nothing else."""

    def __init__(
        self,
        node_name: str,
        kubelet_directory: Path | None,
        annotation: NodeAnnotation,
        pods: KubeReads,
        lister: PodLister,
        ledger: LedgerView,
        granting: Grants,
        over: Callable[[], Collection[str]],
    ) -> None:
        """Make one; without a directory of the kubelet, claims are not served. `annotation` says on the Node whether.

        `over` returns the UIDs of pods of which the agent has reported that nothing is left.
        """
        self._node_name, self._pods, self._lister, self._ledger = node_name, pods, lister, ledger
        self._granting, self._over, self._annotation = granting, over, annotation
        self._given_back: set[str] = set()  # UIDs of claims, also where files are left for now
        self._outcomes: Counter[str] = Counter()  # "prepared", "refused", "not_yet" -> how often
        self._registered = False
        self._plugin: DraPlugin | None = None
        if kubelet_directory is None:
            self._annotation.want("")
        else:
            directory, told = kubelet_directory, self._observe_registration
            self._plugin = DraPlugin(node_name, directory, self.prepare, self.unprepare, told)

    async def run(self) -> None:
        """Serve until cancelled, if that is to be."""
        if self._plugin is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._plugin.run())
            group.create_task(self._rebuild_all())

    def show(self, cards: Iterable[Card]) -> None:
        """Observe the cards as they are now."""
        if self._plugin is not None:
            self._plugin.show(cards)

    async def shares(self, pod_uid: str, uuid: str) -> bool:
        """Return whether a pod uses a card by a claim that is not its own alone. Raises ApiError."""
        shared = [grant for grant in self._granting.files.all() if not grant.of_one_pod and uuid in grant.uuids]
        if not shared:
            return False

        def uses_one(pod: dict[str, Any]) -> bool:
            return pod["metadata"]["uid"] == pod_uid and any(uses(pod, grant) for grant in shared)

        return any(await self._pods.pods_of_node(self._node_name, uses_one))

    def metrics(self) -> Iterable[Metric]:
        """Yield whether claims are served, and what became of those that the kubelet has asked for."""
        yield gauge("serves_claims", "Whether the kubelet sends ResourceClaims here.", [([], float(self._registered))])
        found = [([outcome], float(number)) for outcome, number in self._outcomes.items()]
        yield counter("claim_preparations", "Preparations of ResourceClaims, by outcome.", found, ["outcome"])

    def prepared(self) -> frozenset[tuple[str, str]]:
        """Return namespace and name of the claims that the kubelet has asked for, and not given back."""
        grants = [(grant, grant.claim) for grant in self._granting.files.all() if grant.claim is not None]
        self._given_back &= {claim.uid for _, claim in grants}
        return frozenset((grant.namespace, claim.name) for grant, claim in grants if claim.uid not in self._given_back)

    async def prepare(self, claim: ClaimKey) -> list[PreparedDevice]:
        """Have a claim's cards ready; return them as devices. Idempotent.

        Raises StartRefused, or NotKnownYet and ApiError if the cards stay unknown for PATIENCE_S.
        """
        with_patience = retry_until(lambda: self._prepare(claim), f"claim {claim}")
        return await counted(with_patience, self._outcomes, "prepared")

    async def unprepare(self, claim: ClaimKey) -> None:
        """Remove the files of a claim. A file that can't be removed now is removed later."""
        self._given_back.add(claim.uid)
        self._granting.forget(lambda grant: grant.claim is not None and grant.claim.uid == claim.uid)

    def give_up(self, names: Collection[str]) -> None:
        """Remove grants, by name, that no pod uses any more: claims as if the kubelet had given them back."""
        self._given_back |= {each.claim.uid for each in self._granting.files.all() if each.claim and each.name in names}
        self._granting.forget(lambda grant: grant.name in names)

    async def rebuild(self, in_use: Iterable[ClaimInUse]) -> None:
        """Have the files again of claims whose devices containers may be given when they restart."""
        known = {grant.name for grant in self._granting.files.all()}
        for claim in in_use:
            for name in filter(None, map(own_name, claim.devices)):
                uid = claim_of_name(name)
                if uid is None or name in known:
                    continue
                try:
                    await self.prepare(ClaimKey(claim.namespace, claim.name, uid))
                except (GpuledgerError, OSError) as error:
                    logger.info("the files of claim %s/%s stay as they are: %s", claim.namespace, claim.name, error)

    def _observe_registration(self, registered: bool) -> None:
        self._registered = registered
        self._annotation.want("true" if registered else "")

    async def _rebuild_all(self) -> None:
        try:
            listed = await retry_until(self._lister.list, "the list of claims in use")
        except NotKnownYet as error:
            logger.warning("files of claims that are missing stay so: %s", error)
            return
        await self.rebuild(listed.claims)

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
        known = {grant.name for grant in self._granting.files.all()}
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
