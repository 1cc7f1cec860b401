"""An agent's parts between a kubelet's bookkeeping and an API server in memory: no sockets, no waiting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders import a_card
from fakes.device_manager import DeviceManager, Given
from fakes.node_api import NodeApi
from fakes.objects import GPU, a_container, a_pod_object
from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.agent.devices.source import MemoryLimit
from gpuledger.agent.grants.claims import ClaimService
from gpuledger.agent.grants.files import GrantFiles
from gpuledger.agent.grants.grants import Grants, NodeCapabilities
from gpuledger.agent.grants.ledger_view import LedgerView
from gpuledger.agent.grants.starts import ContainerStarts
from gpuledger.agent.isolation.choice import Installed, Isolation
from gpuledger.agent.isolation.driver_limits import ControlGroups, DriverLimits
from gpuledger.agent.kubelet import slot_owners
from gpuledger.agent.kubelet.slot_owners import ClaimInUse, NodePods, SlotOwners, answered_name
from gpuledger.agent.node_entry import NodeAnnotation
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.formats.runtime.cdi import CheckpointEntry, VendorDevices, read_grant
from gpuledger.model.card import Amounts, Card
from gpuledger.model.share import ContainerShare, Holder, HolderState, Pod, Share

Json = dict[str, Any]

NODE = "node-a"


class AgentNode:
    """One node: `kubelet` gives out slots, `api` has pods and the ledger, `starts` is what is tested."""

    def __init__(self, root: Path, *, cards: int = 4, slots: int = 40, with_cdi: bool = True) -> None:
        self.root, self.with_cdi = root, with_cdi
        (root / "device-plugins").mkdir()
        self.kubelet = DeviceManager(root / "device-plugins")
        self.api = NodeApi()
        self.cards: list[Card] = [
            a_card(index, NODE, memory_mib=1_000_000, cores=10_000, number=1_000) for index in range(cards)
        ]
        for card in self.cards:
            self.api.put_card(card)
        self.over: set[str] = set()
        """UIDs of pods of which the agent has reported that nothing is left."""
        self.may_run: set[str] = set()
        """UIDs of pods that have ended, and of which something may run."""
        self.shown = {card.uuid: card.index for card in self.cards}
        """What the driver shows: UUID -> index."""
        self.capabilities = NodeCapabilities(Isolation.NONE, Installed(), VendorDevices())
        self.list_fails: Exception | None = None
        self.in_use: frozenset[ClaimInUse] = frozenset()
        """Claims that the kubelet lists."""
        self.limits: list[MemoryLimit] = []
        """What the driver was told."""
        self.kubelet.take_list(GPU, [(f"slot-{number}", "Healthy") for number in range(slots)])
        self.start_agent()

    def start_agent(self) -> None:
        """Start the agent anew: what it had in memory is gone."""
        self.owners = SlotOwners(NODE, self.kubelet.directory, self.api.store, self)
        self.ledger = LedgerView(NODE, self.api.store, lambda: self.shown)
        self.grants = GrantFiles(self.root / "cdi", self.root / "shares", self.with_cdi)
        self.grants.load()
        self.by_driver = DriverLimits(self.root / "limits", self.grants.all, ControlGroups(), self._set_limits)
        self.granting = Grants(self.grants, lambda: self.capabilities, self.by_driver, lambda: self.may_run)
        self.claims = self.claim_service(served=False)
        self.starts = ContainerStarts(self.owners, self.ledger, self.granting)

    def claim_service(self, served: bool) -> ClaimService:
        """Return another one; `served`: it has a directory of the kubelet."""
        directory, pods = Path("/nowhere") if served else None, self.api.store
        self.serves_claims = NodeAnnotation(NODE, pods, SERVES_CLAIMS_ANNOTATION)
        return ClaimService(
            NODE, directory, self.serves_claims, pods, self, self.ledger, self.granting, lambda: self.over
        )

    async def list(self) -> NodePods:
        """Return the kubelet's list, as its socket gives it."""
        if self.list_fails:
            raise self.list_fails
        return replace(slot_owners._node_pods(self.kubelet.pod_resources()), claims=self.in_use)

    # Pods.

    def bind(
        self,
        name: str,
        given: Mapping[str, Sequence[int]],
        *,
        uid: str = "",
        init: Iterable[str] = (),
        sidecars: Iterable[str] = (),
        state: HolderState = HolderState.ALLOCATED,
        annotation: str | None = None,
    ) -> Json:
        """Create a pod on the node, with these cards for each container in the ledger; return it."""
        uid, init, sidecars = uid or f"uid-{name}", list(init), list(sidecars)
        containers = [a_container(each, {GPU: str(len(cards))}) for each, cards in given.items()]
        pod = a_pod_object(name, uid=uid, node_name=NODE, containers=[c for c in containers if c["name"] not in init])
        pod["spec"]["initContainers"] = [
            each | ({"restartPolicy": "Always"} if each["name"] in sidecars else {})
            for each in containers
            if each["name"] in init or each["name"] in sidecars
        ]
        pod["spec"]["containers"] = [each for each in pod["spec"]["containers"] if each["name"] not in sidecars]
        shares = self.hold(uid, name, given, state)
        pod["metadata"]["annotations"] = {
            DEVICES_ANNOTATION: devices_annotation(shares) if annotation is None else annotation
        }
        return self.api.put_pod(pod)

    def hold(
        self, uid: str, name: str, given: Mapping[str, Sequence[int]], state: HolderState = HolderState.ALLOCATED
    ) -> Sequence[Share]:
        """Have the ledger say so."""
        shares = []
        for card in self.cards:
            names = [each for each, cards in given.items() if card.index in cards]
            if names:
                containers = tuple(ContainerShare(each, 100, 10) for each in names)
                shares.append(
                    Share(card.uuid, Amounts(100 * len(names), 10 * len(names), len(names)), False, containers)
                )
                self.set_holders(
                    card, *self.holders(card, but=uid), Holder(Pod(uid, "default", name), shares[-1], state)
                )
        return shares

    def holders(self, card: Card, but: str) -> Sequence[Holder]:
        """Return who else holds a card."""
        return [holder for holder in self.api.card(card).holders or () if holder.pod.uid != but]

    def set_holders(self, card: Card, *holders: Holder) -> None:
        """Write down who holds a card, as the operator does."""
        self.api.put_card(card, *holders)

    def release(self, uid: str) -> None:
        """Have the ledger forget a pod."""
        for card in self.cards:
            self.set_holders(card, *self.holders(card, but=uid))

    # What the kubelet does.

    async def admit(self, pod: Json) -> None:
        """Give a pod its slots, and say that it is taken up."""
        await self.kubelet.admit(pod, self._allocate)
        stored = self.api.pods.get((pod["metadata"]["namespace"], pod["metadata"]["name"]))
        if stored is not None and stored["metadata"]["uid"] == pod["metadata"]["uid"]:
            self.api.put_pod(stored | {"status": stored["status"] | {"startTime": "2030-01-01T00:00:00Z"}})

    async def start(self, pod: Json, container: str) -> str:
        """Ask for a container's start; return the name by which its runtime looks for its cards."""
        given = self.given(pod, container)
        await self.starts.start(GPU, given.slots)
        return self.name(pod, container)

    def given(self, pod: Json, container: str) -> Given:
        """Return a container's slots, and what the kubelet was answered for them."""
        return self.kubelet.answer(pod["metadata"]["uid"], container, GPU)

    def name(self, pod: Json, container: str) -> str:
        """Return the name that the kubelet passes on to the runtime."""
        name = answered_name(CheckpointEntry("", "", "", frozenset(), self.given(pod, container).answer))
        assert name is not None
        return name

    def delivered(self, name: str) -> tuple[str, str, tuple[str, ...]] | None:
        """Return pod UID, container and cards in the file that a runtime would read, None without a file."""
        file = self.root / "cdi" / f"gpuledger.dev-share-{name}.json"
        if not file.exists():
            return None
        grant = read_grant(file.read_bytes())
        return grant.pod_uid, grant.container, grant.uuids

    def uuids(self, *indexes: int) -> tuple[str, ...]:
        """Return the cards' UUIDs."""
        return tuple(self.cards[index].uuid for index in indexes)

    async def _set_limits(self, limits: Iterable[MemoryLimit], timeout_s: float) -> None:
        self.limits += limits

    async def _allocate(self, resource: str, slots: Sequence[str]) -> bytes:
        answer: messages.ContainerAllocateResponse = self.starts.allocate(resource, frozenset(slots))
        return answer.SerializeToString()
