"""The cards of the ledger as they change, and which nodes are cordoned."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

import aiohttp

from gpuledger.command_line.cards import ALLOCATIONS, selector_of
from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.top.other_nodes import NODES, is_cordoned, nodes_selected
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.watch import follow
from gpuledger.model.errors import ApiError
from gpuledger.model.json_object import Json
from gpuledger.model.stored_card import StoredCard


class CardWatch:
    """Cards by the UID of their object. `trouble` says what keeps news away, empty while they come."""

    def __init__(self, node: str | None, objects: list[Json], nodes: Iterable[Json] | None = None) -> None:
        """Take the cards and the Nodes as they were read; None if Nodes are not to be followed."""
        self._node = node
        self.with_nodes = nodes is not None
        self.cards: dict[str, StoredCard] = {item["metadata"]["uid"]: stored_card(item) for item in objects}
        # UID of a cordoned Node -> its name
        self._cordoned = {
            each["metadata"]["uid"]: each["metadata"]["name"] for each in nodes or () if is_cordoned(each)
        }
        self.news = asyncio.Event()
        self.trouble = ""

    def changed(self, found: Json, gone: bool) -> None:
        """Observe a card as it is now, or was when it was deleted."""
        uid = found["metadata"]["uid"]
        if gone:
            self.cards.pop(uid, None)
        elif self._node is None or found["spec"]["nodeName"] == self._node:
            self.cards[uid] = stored_card(found)
        self.news.set()

    def listing(self) -> Callable[[set[str]], None]:
        """Return what takes the UIDs of a list that is read from now on: cards that are not in it are gone."""
        known = set(self.cards)

        def listed(uids: set[str]) -> None:
            for uid in known - uids:
                self.cards.pop(uid, None)
            self.report("")

        return listed

    def cordoned(self) -> frozenset[str]:
        """Return the names of the nodes that are cordoned."""
        return frozenset(self._cordoned.values())

    def node_changed(self, found: Json, gone: bool) -> None:
        """Observe a node that is cordoned, or that is not any more."""
        uid = found["metadata"]["uid"]
        if gone:
            self._cordoned.pop(uid, None)
        else:
            self._cordoned[uid] = found["metadata"]["name"]
        self.news.set()

    def nodes_listing(self) -> Callable[[set[str]], None]:
        """Return what takes the UIDs of all nodes that are cordoned."""
        known = set(self._cordoned)

        def listed(uids: set[str]) -> None:
            for uid in known - uids:
                self._cordoned.pop(uid, None)
            if known - uids:
                self.news.set()

        return listed

    def report(self, trouble: str) -> None:
        """Note what is wrong, or that nothing is."""
        if trouble != self.trouble:
            self.trouble = trouble
            self.news.set()


class ReportingClient:
    """What `follow` needs of a client, which also says what keeps news away."""

    def __init__(self, client: KubeClient, report: Callable[[str], None]) -> None:
        self._client, self._report = client, report

    async def request(
        self, method: str, path: str, *, parameters: Mapping[str, str] | None = None, longest_bytes: int | None = None
    ) -> Json:
        """Send one request. Raises ApiError."""
        try:
            return await self._client.request(method, path, parameters=parameters, longest_bytes=longest_bytes)
        except ApiError as error:
            self._report(str(error))
            raise

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch: its events, one JSON text each."""
        try:
            async with self._client.stream(path, parameters, silence_s) as lines:
                yield self._heard(lines)
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            self._report(str(error) or type(error).__name__)
            raise

    async def _heard(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            self._report("")
            yield line


@contextlib.asynccontextmanager
async def followed(cluster: ClusterAccess, node: str | None, watch: CardWatch) -> AsyncIterator[Callable[[], None]]:
    """Keep a CardWatch up to date until the `async with` ends.

    Yields what raises the error that has ended the following, if one has. Raises BadInput without credentials.
    """
    async with cluster.client() as client:
        api = ReportingClient(client, watch.report)
        tasks = [asyncio.create_task(follow(api, ALLOCATIONS, selector_of(node), watch.changed, watch.listing))]
        if watch.with_nodes:  # what keeps news away is said of the cards
            only = nodes_selected(node, only_cordoned=True)
            tasks.append(asyncio.create_task(follow(client, NODES, only, watch.node_changed, watch.nodes_listing)))
        for task in tasks:
            task.add_done_callback(lambda _: watch.news.set())

        def check() -> None:
            for task in tasks:
                if task.done():
                    task.result()

        try:
            yield check
        finally:
            for task in tasks:
                if not task.cancelling():  # a second time would keep it from waiting for its connection's end
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
