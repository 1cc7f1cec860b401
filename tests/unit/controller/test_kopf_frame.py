"""Kopf builds, runs and stops the operator, and reads without ever writing."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest

from fakes.objects import a_node_object
from gpuledger.configuration.settings import Settings
from gpuledger.controller import kopf_frame
from gpuledger.controller.kopf_frame import KopfFrame, NoDiffBase, configure
from gpuledger.controller.kopf_session import ListsRead
from gpuledger.controller.startup import RunOptions
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import BadInput, StateRolledBack, Unreachable
from gpuledger.workflows import kinds as kinds_table
from gpuledger.workflows.kinds import Subscription, Watcher

Json = dict[str, Any]


def settings() -> kopf.OperatorSettings:
    found = kopf.OperatorSettings()
    configure(found)
    return found


def test_kopf_posts_no_events_and_looks_for_no_peers_and_no_definitions() -> None:
    found = settings()
    assert found.posting.enabled is False
    assert found.peering.standalone is True
    assert found.scanning.disabled is True


def test_kopf_asks_for_one_object_of_a_list_and_keeps_none_for_long() -> None:
    found = settings()
    assert (found.watching.chunk_size, found.queueing.idle_timeout) == (1, 0.01)


def test_nothing_is_stored_for_comparison() -> None:
    storage = settings().persistence.diffbase_storage
    body, patch = kopf.Body(cast(Any, a_node_object("node-a"))), kopf.Patch()
    assert isinstance(storage, NoDiffBase)
    assert storage.build(body=body) == {}
    assert storage.fetch(body=body) is None
    storage.store(body=body, patch=patch, essence={"a": 1})
    assert not patch


class StubOperator:
    """Remembers the nodes that it was shown, and what was done with it."""

    def __init__(self) -> None:
        self.client = self
        self.workflows = SimpleNamespace(observer=self)
        self.lists = ListsRead(["nodes"])
        self.nodes: int | None = 1
        """How many there are; None: the API server does not answer."""
        self.synced = False
        self.seen: list[tuple[Json, bool]] = []
        self.done: list[str] = []

    def node(self, node: Json, gone: bool) -> None:
        self.seen.append((node, gone))

    def subscriptions(self, pods_by: Watcher) -> list[Subscription]:
        pods = replace(kinds_table.PODS, watcher=pods_by, fields="spec.schedulerName!=x")
        return [Subscription(kind=kind, observe=self.node) for kind in (kinds_table.NODES, pods, kinds_table.CARDS)]

    async def request(self, method: str, path: str, *, parameters: Json) -> Json:
        """Answer the question for the number of nodes."""
        if self.nodes is None:
            raise Unreachable(path)
        return {"items": [{}], "metadata": {"remainingItemCount": self.nodes - 1}}

    async def close(self) -> None:
        self.done.append("connection closed")

    async def run_parts(self) -> None:
        """Stand in for the parts: they run until they are cancelled."""
        self.done.append("parts run")
        try:
            await asyncio.Event().wait()
        finally:
            self.done.append("parts stopped")


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> StubOperator:
    """Return what the frame builds, in the place of a real operator."""
    built = StubOperator()

    async def connect(*_: object) -> StubOperator:
        return built

    async def serve(_: object, __: object, started: contextlib.AsyncExitStack) -> None:
        built.done.append("ports open")
        started.callback(built.done.append, "ports closed")

    monkeypatch.setattr(KubeClient, "connect", connect)

    def build(*given: Any) -> SimpleNamespace:
        parts = {"client": built, "workflows": built.workflows, "lists": built.lists}
        return SimpleNamespace(**parts, subscriptions=built.subscriptions(given[-1]))

    monkeypatch.setattr(kopf_frame, "build_operator", build)
    monkeypatch.setattr(kopf_frame, "serve", serve)
    monkeypatch.setattr(kopf_frame, "run_parts", lambda *_, **__: built.run_parts())
    return built


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the signals that the process sends to itself, in a list that grows."""
    sent: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", sent.append)
    return sent


def a_frame(read_options: Callable[[], RunOptions] = lambda: RunOptions(settings=Settings())) -> KopfFrame:
    return KopfFrame(kopf.OperatorRegistry(), read_options)


async def test_the_parts_run_until_kopf_stops_them_and_end_in_the_reverse_order(
    operator: StubOperator, signals: list[int]
) -> None:
    frame = a_frame()
    await frame.start(settings())
    await asyncio.sleep(0)
    assert operator.done == ["ports open", "parts run"]
    await frame.stop()
    await frame.stop()
    assert operator.done[2:] == ["parts stopped", "ports closed", "connection closed"]
    assert (signals, frame.failure) == ([], None)


async def test_an_operator_whose_part_ends_ends_as_if_it_was_told_to(
    operator: StubOperator, signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    why = StateRolledBack("restored from an older state")

    async def went_back() -> None:
        raise why

    monkeypatch.setattr(operator, "run_parts", went_back)
    frame = a_frame()
    await frame.start(settings())
    for _ in range(4):
        await asyncio.sleep(0)
    assert (signals, frame.failure) == ([signal.SIGTERM], why)
    await frame.stop()
    assert operator.done == ["ports open", "ports closed", "connection closed"]


async def test_a_start_that_fails_closes_what_was_open_and_ends_kopf_when_that_can_hear_of_it(
    operator: StubOperator, signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    why = OSError("the port is taken")

    async def serve(*_: object) -> None:
        raise why

    monkeypatch.setattr(kopf_frame, "serve", serve)
    frame = a_frame()
    await frame.start(settings())
    assert (operator.done, signals) == (["connection closed"], [])
    await asyncio.sleep(0)
    assert (signals, frame.failure) == ([signal.SIGTERM], why)


async def test_options_that_cannot_be_read_are_a_start_that_fails(signals: list[int]) -> None:
    def read_options() -> RunOptions:
        raise BadInput("settings: no such option")

    frame = a_frame(read_options)
    await frame.start(settings())
    await asyncio.sleep(0)
    assert (signals, str(frame.failure)) == ([signal.SIGTERM], "settings: no such option")


def handlers_of(frame: KopfFrame) -> dict[str, Any]:
    """Return the handlers of raw events: plural of their kind -> the function."""
    return {str(each.id): each.fn for each in frame._registry._watching.get_all_handlers()}


@pytest.mark.parametrize("kind", [None, "ADDED", "MODIFIED", "DELETED"])
async def test_a_node_is_handed_on_and_nothing_is_returned(
    operator: StubOperator, signals: list[int], kind: Any
) -> None:
    frame, node = a_frame(), a_node_object("node-a")
    await frame.start(settings())
    await operator.lists.in_hand["nodes"].show(100)
    assert await handlers_of(frame)["nodes"](event={"type": kind, "object": dict(node)}, other=1) is None
    assert operator.seen == [(node, kind == "DELETED")]
    assert operator.lists.in_hand["nodes"]._events == 0
    await frame.stop()


@pytest.mark.parametrize(
    ("nodes", "most", "kinds"),
    [(100, 100, {"nodes", "pods"}), (101, 100, {"nodes"}), (1, 0, {"nodes"}), (None, 100, {"nodes"})],
)
async def test_kopf_watches_pods_up_to_a_number_of_nodes(
    operator: StubOperator, signals: list[int], nodes: int | None, most: int, kinds: set[str]
) -> None:
    """Without an answer, the plain watch does, which can in any cluster."""
    operator.nodes = nodes
    found, options = settings(), RunOptions(settings=Settings(kopf_pods_most_nodes=most))
    frame = a_frame(lambda: options)
    await frame.start(found)
    assert handlers_of(frame).keys() == kinds
    assert [*found.watching.field_selectors.values()] == ["", "spec.schedulerName!=x"][: len(kinds)]
    await frame.stop()


async def test_kopfs_liveness_endpoint_says_whether_the_ledger_was_read(
    operator: StubOperator, signals: list[int]
) -> None:
    frame = a_frame()
    await frame.start(settings())
    assert await frame.probe() == "not read yet"
    operator.synced = True
    assert await frame.probe() == "read"
    await frame.stop()


async def test_without_an_operator_nobody_logs_in() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await a_frame().log_in()


async def test_only_handlers_of_raw_events_are_registered(operator: StubOperator, signals: list[int]) -> None:
    """All other kinds make Kopf write annotations or finalizers to what they watch."""
    frame = a_frame()
    await frame.start(settings())
    registry = frame._registry
    for others in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(others.get_all_handlers()) == []
    assert sorted(each.id for each in registry._activities.get_all_handlers()) == [
        "KopfFrame.log_in",
        "KopfFrame.start",
        "KopfFrame.stop",
        "ledger",
    ]
    await frame.stop()


def test_kopf_takes_no_finalizer_away() -> None:
    """The API server accepts none by this name."""
    assert " " in settings().persistence.finalizer


def test_kopf_asks_for_no_users_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's user has none."""
    monkeypatch.delenv("POD_ID", raising=False)
    a_frame()
    assert os.environ["POD_ID"]


def test_nothing_private_of_kopf_is_imported() -> None:
    """Kopf promises nothing of its modules that begin with an underscore."""
    package = Path(kopf_frame.__file__).parents[1]
    assert [str(file) for file in package.rglob("*.py") if "kopf._" in file.read_text()] == []
