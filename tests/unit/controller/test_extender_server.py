"""HTTP: every answer is one that kube-scheduler can read, whatever it was asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from io import BytesIO
from typing import Any, cast

import orjson
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

from fakes.context import a_context
from fakes.counters import by_label
from fakes.objects import a_pod_object
from fakes.virtual_time import StoppedClock
from gpuledger.controller.extender_server import ExtenderServer, SchedulerHealth
from gpuledger.controller.scheduler_connection import served
from gpuledger.controller.telemetry.metrics import Measured, Metrics
from gpuledger.formats.scheduler import BindArguments, FilterArguments, PreemptArguments
from gpuledger.model.errors import BindFailed, BindInProgress, GpuledgerError
from gpuledger.workflows.inventory import NodesWithoutTopology
from gpuledger.workflows.journal.journal import GROUP_LIMIT
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.placing.place_pod import FilterResult, PodPlacer
from gpuledger.workflows.preemption.for_scheduler import SchedulersPreemption
from gpuledger.workflows.reporting import JournalCounts

Client = TestClient[web.Request, web.Application]

BIND = {"PodName": "a", "PodNamespace": "default", "PodUID": "u", "Node": "node-a"}
NOBODY_LISTENS = "https://127.0.0.1:1/livez"
NOT_READY = "gpuledger: gpuledger has just started and is still reading the ledger"


class StubPlacer:
    """Remembers what it was asked, and answers what it was told."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.error: GpuledgerError | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.is_connected: Callable[[], bool] = lambda: True
        self.result = FilterResult(["node-a"], {"node-b": "no card entirely free"})

    def _ask(self, arguments: object) -> None:
        if isinstance(arguments, FilterArguments):
            arguments = FilterArguments(arguments.pod, list(arguments.node_names))
        self.asked.append(arguments)
        if self.error:
            raise self.error

    async def answer(self, arguments: FilterArguments) -> FilterResult:
        self._ask(arguments)
        return self.result

    def prioritize(self, arguments: FilterArguments) -> list[str]:
        self._ask(arguments)
        return list(arguments.node_names)

    async def bind(self, arguments: BindArguments, is_connected: Callable[[], bool]) -> None:
        self.is_connected = is_connected
        self._ask(arguments)
        await self.goes_on.wait()


class StubPreemption:
    """Keeps the first victim on each node."""

    async def preempt(self, arguments: PreemptArguments) -> dict[str, tuple[str, ...]]:
        return {name: victims[:1] for name, victims in arguments.victims.items() if victims}


class World:
    """A server with its stub."""

    def __init__(self) -> None:
        self.placer, self.preemption = StubPlacer(), StubPreemption()
        context = a_context(StoppedClock())
        self.counts = context.counts
        self.ready = self.settled = True
        ledger, chooser, waiting = context.ledger, context.chooser, WaitingPods(context)
        unlinked = NodesWithoutTopology(ledger, context.policy)
        measured = Measured(ledger, chooser, self.counts, JournalCounts(GROUP_LIMIT), waiting, cast(Any, ()), unlinked)
        placer, preemption = cast(PodPlacer, self.placer), cast(SchedulersPreemption, self.preemption)
        self.server = ExtenderServer(
            placer,
            preemption,
            Metrics(measured),
            self.counts,
            lambda: self.ready,
            SchedulerHealth(NOBODY_LISTENS),
            lambda: self.settled,
        )


@pytest.fixture
def world() -> World:
    """Return a server that is ready."""
    return World()


@pytest.fixture
async def extender(world: World) -> AsyncIterator[ClientSession]:
    """Return a client of the scheduler's routes."""
    async with served(world.server.questions(), "127.0.0.1", 0) as server:
        host, port = server.address
        async with ClientSession(f"http://{host}:{port}") as client:
            yield client


@pytest.fixture
async def health(world: World) -> AsyncIterator[Client]:
    """Return a client of the kubelet's routes."""
    async with TestClient(TestServer(world.server.health())) as client:
        yield client


def question(*node_names: str) -> dict[str, Any]:
    return {"Pod": a_pod_object(), "Nodes": None, "NodeNames": list(node_names)}


async def no_json(client: ClientSession, path: str, body: object) -> str:
    """Return an answer that kube-scheduler takes for an error, and shows without the URL that it has asked."""
    async with client.post(path, data=orjson.dumps(body)) as response:
        text = await response.text()
        assert response.status == 200
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(text)
        return text


async def post(client: ClientSession, path: str, body: object) -> Any:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    async with client.post(path, data=BytesIO(data)) as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        return await response.json()


async def test_a_filter_is_answered_with_the_keys_of_the_protocol(world: World, extender: ClientSession) -> None:
    assert await post(extender, "/filter", question("node-a", "node-b")) == {
        "Nodes": None,
        "NodeNames": ["node-a"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"node-b": "no card entirely free"},
        "Error": "",
    }
    assert world.placer.asked == [FilterArguments(a_pod_object(), ["node-a", "node-b"])]


async def test_victims_go_there_and_back_with_the_keys_of_the_protocol(extender: ClientSession) -> None:
    victims = {"Pods": [{"UID": "first"}, {"UID": "second"}], "NumPDBViolations": 1}
    body = {
        "Pod": a_pod_object(),
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"node-a": victims, "node-b": {"Pods": None, "NumPDBViolations": 0}},
    }
    assert await post(extender, "/preempt", body) == {
        "NodeNameToMetaVictims": {"node-a": {"Pods": [{"UID": "first"}], "NumPDBViolations": 1}}
    }


async def test_victims_are_understood_as_whole_pods_too(extender: ClientSession) -> None:
    body = {
        "Pod": a_pod_object(),
        "NodeNameToVictims": {"node-a": {"Pods": [a_pod_object("low")], "NumPDBViolations": 0}},
        "NodeNameToMetaVictims": None,
    }
    answer = await post(extender, "/preempt", body)
    assert answer == {"NodeNameToMetaVictims": {"node-a": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 0}}}


@pytest.mark.parametrize(
    "body",
    [
        {"Pod": a_pod_object()},
        {"Pod": a_pod_object(), "NodeNameToMetaVictims": {"node-a": {"Pods": [{"Uid": "low"}]}}},
        {"Pod": None, "NodeNameToMetaVictims": {"node-a": {"Pods": [{"UID": "low"}]}}},
        [],
    ],
)
async def test_a_preempt_request_that_cannot_be_read_is_an_error(extender: ClientSession, body: object) -> None:
    text = await no_json(extender, "/preempt", body)
    assert "gpuledger: the preempt request has no Pod, or no victims" in text


async def test_nodes_that_are_only_short_of_room_are_told_apart(world: World, extender: ClientSession) -> None:
    world.placer.result = FilterResult([], {"node-a": "no GPUs in the ledger"}, {"node-b": "no card entirely free"})
    answer = await post(extender, "/filter", question("node-a", "node-b"))
    assert answer["FailedNodes"] == {"node-b": "no card entirely free"}
    assert answer["FailedAndUnresolvableNodes"] == {"node-a": "no GPUs in the ledger"}


async def test_nodes_are_scored_by_their_order(extender: ClientSession) -> None:
    assert await post(extender, "/prioritize", question("b", "a")) == [
        {"Host": "b", "Score": 10},
        {"Host": "a", "Score": 9},
    ]


async def test_a_bind_that_succeeds_is_answered_without_an_error(world: World, extender: ClientSession) -> None:
    assert await post(extender, "/bind", BIND) == {"Error": ""}
    assert world.placer.asked == [BindArguments("u", "default", "a", "node-a")]


async def test_a_bind_knows_whether_kube_scheduler_still_waits_for_its_answer(
    world: World, extender: ClientSession
) -> None:
    world.placer.goes_on.clear()
    caller = asyncio.create_task(post(extender, "/bind", BIND))
    while not world.placer.asked:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0.01)
    assert world.placer.is_connected()
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller
    while world.placer.is_connected():  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0.01)


async def test_a_bind_that_fails_says_why(world: World, extender: ClientSession) -> None:
    world.placer.error = BindFailed("the pod is being bound to node b")
    assert await post(extender, "/bind", BIND) == {"Error": "gpuledger: the pod is being bound to node b"}


async def test_a_filter_that_cannot_be_judged_now_is_an_error_and_no_refusal(
    world: World, extender: ClientSession
) -> None:
    world.placer.error = BindInProgress("shares are being given back")
    answer = await post(extender, "/filter", question("node-a"))
    assert answer["Error"] == "gpuledger: shares are being given back"
    assert (answer["NodeNames"], answer["FailedAndUnresolvableNodes"]) == (None, {})
    assert by_label(world.counts.bad_input) == {}


@pytest.mark.parametrize(("path", "body"), [("/filter", question("node-a")), ("/bind", BIND)])
async def test_nothing_is_decided_before_the_ledger_is_read(
    world: World, extender: ClientSession, path: str, body: object
) -> None:
    world.ready = False
    assert (await post(extender, path, body))["Error"] == NOT_READY
    assert world.placer.asked == []
    world.ready = True
    assert (await post(extender, path, body))["Error"] == ""


@pytest.mark.parametrize(("path", "body"), [("/filter", question("node-a")), ("/bind", BIND)])
async def test_nothing_is_decided_for_a_scheduler_with_the_configuration_of_other_settings(
    world: World, extender: ClientSession, path: str, body: object
) -> None:
    world.server.scheduler.has_old_configuration = lambda: True
    assert "has the configuration of other settings" in (await post(extender, path, body))["Error"]
    assert world.placer.asked == []


async def test_there_are_no_scores_before_the_ledger_is_read(world: World, extender: ClientSession) -> None:
    world.ready = False
    assert await no_json(extender, "/prioritize", question("a")) == NOT_READY


@pytest.mark.parametrize("path", ["/filter", "/bind"])
@pytest.mark.parametrize("body", [b"{", b"", b"[]", b"null", b"{}", b'{"Pod": 1, "NodeNames": 2}'])
async def test_a_request_that_makes_no_sense_is_an_error_and_counted(
    world: World, extender: ClientSession, path: str, body: bytes
) -> None:
    assert (await post(extender, path, body))["Error"].startswith("gpuledger: the ")
    assert by_label(world.counts.bad_input) == {"request": 1}
    assert world.placer.asked == []


async def test_five_thousand_nodes_in_more_than_a_mebibyte_are_accepted(world: World, extender: ClientSession) -> None:
    names = [f"node-{number:05}-{'x' * 230}" for number in range(5_000)]
    body = orjson.dumps(question(*names))
    assert len(body) > 1024 * 1024
    world.placer.result = FilterResult([], dict.fromkeys(names, "no card entirely free"))
    answer = await post(extender, "/filter", body)
    assert len(answer["FailedAndUnresolvableNodes"]) == 5_000
    assert isinstance(world.placer.asked[0], FilterArguments)
    assert world.placer.asked[0].node_names == names


async def test_the_process_is_ready_when_the_ledger_is_read(world: World, health: Client) -> None:
    world.ready = False
    async with health.get("/readyz") as response:
        assert (response.status, await response.text()) == (503, "the ledger is not read yet\n")
    async with health.get("/healthz") as response:
        assert response.status == 200
    world.ready, world.settled = True, False
    async with health.get("/readyz") as response:
        assert (response.status, await response.text()) == (503, "the history of the other replicas is not read yet\n")
    world.settled = True
    async with health.get("/readyz") as response:
        assert response.status == 200


async def test_a_kube_scheduler_that_does_not_live_makes_the_operator_neither_dead_nor_unready(health: Client) -> None:
    for path, status in {"/healthz/scheduler": 503, "/healthz": 200, "/readyz": 200}.items():
        async with health.get(path) as response:
            assert response.status == status


async def test_metrics_show_the_counters(world: World, health: Client, extender: ClientSession) -> None:
    world.counts.filters.inc(3)
    world.counts.refusals.labels("no-memory").inc(2)
    await post(extender, "/filter", question("node-a"))
    async with health.get("/metrics") as response:
        text = await response.text()
    for line in (
        "gpuledger_filters_total 3.0",
        'gpuledger_refusals_total{reason="no-memory"} 2.0',
        "gpuledger_filter_seconds_count 1.0",
        "gpuledger_cards 0.0",
        "gpuledger_nodes_without_links 0.0",
    ):
        assert line in text.splitlines()


async def test_the_kubelets_port_cannot_bind_pods_and_the_schedulers_shows_no_metrics(
    health: Client, extender: ClientSession
) -> None:
    async with health.post("/bind", data=orjson.dumps(BIND)) as response:
        assert response.status == 404
    async with extender.get("/metrics") as response:
        assert response.status == 404
