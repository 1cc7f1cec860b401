"""Everything about ResourceClaims on this node: what is served to its kubelet, and what its Node says of that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from prometheus_client.core import Metric

from gpuledger.agent.grants.cleanup import OrphanedClaims, uses
from gpuledger.agent.grants.files import GrantFiles
from gpuledger.agent.grants.grants import Grants
from gpuledger.agent.grants.ledger_view import ClaimLedger, NodeCards
from gpuledger.agent.grants.starts import ClaimPreparations, retry_until
from gpuledger.agent.health import counter, gauge
from gpuledger.agent.kubelet.dra import DraPlugin
from gpuledger.agent.kubelet.slot_owners import PodLister, Pods
from gpuledger.agent.node_entry import NodeAnnotation, Nodes
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.model.card import Card
from gpuledger.model.errors import NotKnownYet

logger = logging.getLogger(__name__)


class Store(NodeCards, Pods, Nodes, Protocol):
    """The API server."""


class ClaimService:
    """The claims of one node. Where they are not served, it says so on the Node, and does nothing else."""

    def __init__(
        self,
        node_name: str,
        kubelet_directory: Path | None,
        store: Store,
        lister: PodLister,
        granting: Grants,
        grants: GrantFiles,
        own_cards: Callable[[], Mapping[str, int]],
        over: Callable[[], Collection[str]],
    ) -> None:
        """Make one; without a directory of the kubelet, claims are not served.

        `over` returns the UIDs of pods of which the agent has reported that nothing is left.
        """
        self._node_name, self._lister, self._store = node_name, lister, store
        self._grants = grants
        self.annotation = NodeAnnotation(node_name, store, SERVES_CLAIMS_ANNOTATION)
        ledger = ClaimLedger(node_name, store, own_cards)
        self._preparations = ClaimPreparations(node_name, ledger, store, granting, grants, over)
        self._orphaned = OrphanedClaims(node_name, grants.all, lister, store)
        self._registered = False
        self._plugin: DraPlugin | None = None
        if kubelet_directory is None:
            self.annotation.want("")
        else:
            prepare, unprepare = self._preparations.prepare, self._preparations.unprepare
            self._plugin = DraPlugin(node_name, kubelet_directory, prepare, unprepare, self._observe_registration)

    async def run(self) -> None:
        """Serve until cancelled, if that is to be."""
        if self._plugin is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._plugin.run())
            group.create_task(self._rebuild())

    def prepared(self) -> frozenset[tuple[str, str]]:
        """Return namespace and name of the claims that the kubelet has asked for, and not given back."""
        return self._preparations.prepared()

    def show(self, cards: Iterable[Card]) -> None:
        """Observe the cards as they are now."""
        if self._plugin is not None:
            self._plugin.show(cards)

    async def tidy(self) -> None:
        """Remove what no pod uses any more. Raises ApiError."""
        gone = await self._orphaned.find()
        if gone:
            self._preparations.give_up(gone)

    async def shares(self, pod_uid: str, uuid: str) -> bool:
        """Return whether a pod uses a card by a claim that is not its own alone. Raises ApiError."""
        shared = [grant for grant in self._grants.all() if not grant.of_one_pod and uuid in grant.uuids]
        if not shared:
            return False

        def uses_one(pod: dict[str, Any]) -> bool:
            return pod["metadata"]["uid"] == pod_uid and any(uses(pod, grant) for grant in shared)

        return any(await self._store.pods_of_node(self._node_name, uses_one))

    def metrics(self) -> Iterable[Metric]:
        """Yield whether claims are served, and what became of those that the kubelet has asked for."""
        yield gauge("serves_claims", "Whether the kubelet sends ResourceClaims here.", [([], float(self._registered))])
        found = [([outcome], float(number)) for outcome, number in self._preparations.outcomes.items()]
        yield counter("claim_preparations", "Preparations of ResourceClaims, by outcome.", found, ["outcome"])

    def _observe_registration(self, registered: bool) -> None:
        self._registered = registered
        self.annotation.want("true" if registered else "")

    async def _rebuild(self) -> None:
        try:
            listed = await retry_until(self._lister.list, "the list of claims in use")
        except NotKnownYet as error:
            logger.warning("files of claims that are missing stay so: %s", error)
            return
        await self._preparations.rebuild(listed.claims)
