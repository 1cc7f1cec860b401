"""The cards of the ledger as they change, by way of kubectl or of a client in Python."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.lines import LONGEST_LINE_BYTES
from gpuledger.kube_api.watch import Api, follow
from gpuledger.model.errors import ApiError, BadInput, Unreachable
from gpuledger.model.stored_card import StoredCard
from gpuledger.plugin.account import Account
from gpuledger.plugin.cards import ALLOCATIONS, FROM_MEMORY, Cluster, selector_of
from gpuledger.plugin.kubectl import Kubectl, error_of, with_query

Json = dict[str, Any]


class CardWatch:
    """Cards by the UID of their object. `trouble` says what keeps news away, empty while they come."""

    def __init__(self, node: str | None, objects: list[Json]) -> None:
        self._node = node
        self.cards: dict[str, StoredCard] = {item["metadata"]["uid"]: stored_card(item) for item in objects}
        self.news = asyncio.Event()
        self.trouble = ""

    def changed(self, found: Json, gone: bool) -> None:
        """Take in a card as it is now, or was when it was deleted."""
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
            self.say("")

        return listed

    def say(self, trouble: str) -> None:
        """Take in what is wrong, or that nothing is."""
        if trouble != self.trouble:
            self.trouble = trouble
            self.news.set()


class KubectlApi:
    """What `follow` needs of a client, by kubectl processes; each watch is one."""

    def __init__(self, kubectl: Kubectl, say: Callable[[str], None]) -> None:
        self._kubectl, self._say = kubectl, say

    async def request(
        self, method: str, path: str, *, parameters: Mapping[str, str] | None = None, longest_bytes: int | None = None
    ) -> Json:
        """Read one object, however long. Raises ApiError."""
        assert method == "GET"  # noqa: S101 - follow only reads
        try:
            return await asyncio.to_thread(self._kubectl.read, path, dict(parameters or {}))
        except (ApiError, BadInput) as error:
            raise self._told(error) from None

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch: its events, one JSON text each. When nothing comes for `silence_s`, raises TimeoutError."""
        process = await asyncio.create_subprocess_exec(
            *self._kubectl.argv("get", "--raw", with_query(path, dict(parameters))),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE_BYTES,
        )
        try:
            yield self._lines(process, silence_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _lines(self, process: asyncio.subprocess.Process, silence_s: float) -> AsyncIterator[bytes]:
        assert process.stdout  # noqa: S101 - it was asked for
        assert process.stderr  # noqa: S101
        while True:
            async with asyncio.timeout(silence_s):  # wait_for loses a cancellation that comes together with a line
                line = await process.stdout.readline()
            if not line:
                break
            self._say("")
            yield line
        if await process.wait():
            raise self._told(error_of((await process.stderr.read()).decode(errors="replace")))

    def _told(self, error: ApiError | BadInput) -> ApiError:
        self._say(str(error))
        return error if isinstance(error, ApiError) else Unreachable(str(error))


@contextlib.asynccontextmanager
async def followed(cluster: Cluster, node: str | None, watch: CardWatch) -> AsyncIterator[Callable[[], None]]:
    """Keep a CardWatch up to date until the `async with` ends.

    Yields what raises the error that has ended the following, if one has. Raises BadInput without credentials.
    """
    async with _api(cluster, watch) as api:
        parameters = FROM_MEMORY | selector_of(node)
        task = asyncio.create_task(follow(api, ALLOCATIONS, parameters, watch.changed, watch.listing))
        task.add_done_callback(lambda _: watch.news.set())

        def check() -> None:
            if task.done():
                task.result()

        try:
            yield check
        finally:
            if not task.cancelling():  # a second time would keep it from waiting for its kubectl's end
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def _api(cluster: Cluster, watch: CardWatch) -> AsyncIterator[Api]:
    if isinstance(cluster, Kubectl):
        yield KubectlApi(cluster, watch.say)
        return
    assert isinstance(cluster, Account)  # noqa: S101 - there are two ways
    client = await KubeClient.connect(cluster.kubeconfig)
    try:
        yield client
    finally:
        await client.close()
