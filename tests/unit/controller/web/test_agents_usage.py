"""The operator asks the agents when somebody looks: each is as hostile as its node may be, and costs little."""

import asyncio
import gzip
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from builders import a_card, a_share
from fakes.usage import a_used_card, a_used_share, an_agent_server, an_answer
from gpuledger.controller.web import feed
from gpuledger.controller.web.feed import AgentsUsage
from gpuledger.formats.kubernetes.node import AgentPod
from gpuledger.model.node import NodeUsage
from gpuledger.model.share import Holder, Pod
from gpuledger.reports.cards import CardReport, NodeCards

Json = dict[str, Any]
Said = tuple[int, bytes]

CARD = a_card(0, "gpu-1")
WEB = Holder(Pod("uid-web", "default", "web"), a_share(CARD, 4_000, 20))
NODE = NodeCards("gpu-1", (CardReport(CARD, "Ready", "", (WEB,), 0, 0),))
ANSWER = an_answer("gpu-1", [a_used_card(CARD, 1_300, 37)], [a_used_share(CARD, WEB, 1_200, 12)])


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let agents be on a loopback address, where the tests' own are."""
    monkeypatch.setattr(feed, "host_of", str)


def usage_of(ports: dict[str, int], address: str = "127.0.0.1") -> AgentsUsage:
    """Return what asks agents on these ports, by node; the nodes are gpu-1, and gpu-2, which has no agent."""
    pods = {node: AgentPod(f"agent-of-{node}", node, address, port, ready=True) for node, port in ports.items()}
    return AgentsUsage(lambda: pods, lambda: ["gpu-1", "gpu-2"], lambda name: NODE if name == "gpu-1" else None)


async def answer_to(said: Callable[[str], Said] | Json) -> NodeUsage | str:
    """Return what becomes of what the agent of gpu-1 says."""
    with an_agent_server(said) as port:
        return (await usage_of({"gpu-1": port}).answers())["gpu-1"]


@pytest.mark.usefixtures("near")
async def test_each_node_has_its_agents_answer_or_why_there_is_none() -> None:
    with an_agent_server(ANSWER) as port:
        found = await usage_of({"gpu-1": port}).answers()
    first = found["gpu-1"]
    assert isinstance(first, NodeUsage)
    assert (first.cards[0].memory_used_mib, first.containers[0].memory_used_mib) == (1_300, 1_200)
    assert found["gpu-2"] == "no agent of gpuledger runs there"


@pytest.mark.usefixtures("near")
async def test_all_who_look_at_the_same_time_share_an_answer_and_nobody_is_asked_before() -> None:
    asked: list[str] = []

    def answer(path: str) -> Said:
        asked.append(path)
        return 200, orjson.dumps(ANSWER)

    with an_agent_server(answer) as port:
        usage = usage_of({"gpu-1": port})
        await asyncio.sleep(0)
        assert asked == []
        await asyncio.gather(*(usage.answers() for _ in range(5)))
        await usage.answers()
        assert asked == ["/usage"]
        usage._good_until_s = 0.0
        await usage.answers()
        assert asked == ["/usage"] * 2


@pytest.mark.usefixtures("near")
async def test_who_stops_looking_leaves_the_answer_to_the_others() -> None:
    may_answer = threading.Event()

    def answer(_: str) -> Said:
        may_answer.wait(5)
        return 200, orjson.dumps(ANSWER)

    with an_agent_server(answer) as port:
        usage = usage_of({"gpu-1": port})
        first, second = (asyncio.create_task(usage.answers()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        may_answer.set()
        assert isinstance((await second)["gpu-1"], NodeUsage)


def always(status: int, body: bytes) -> Callable[[str], Said]:
    return lambda _: (status, body)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (always(404, b"404: Not Found"), "its agent does not say what is used: it is of an older release"),
        (always(500, b"no"), "its agent answers 500"),
        (always(302, b"http://127.0.0.1:1/elsewhere"), "its agent answers 302"),  # nobody goes there
        (always(200, b"[" * 100_000), "its agent's answer can't be read: "),
        (always(200, b"{}"), "its agent's answer can't be read: the answer: node is no text"),
        (always(200, b"x" * (1024 * 1024 + 1)), "its agent answers with more than 1,048,576 bytes"),
        (always(200, gzip.compress(b" " * 10**8)), "its agent's answer can't be read: "),  # and is not unpacked
        (ANSWER | {"node": "gpu-2"}, "its agent's answer can't be read: the agent answers for node 'gpu-2'"),
    ],
)
@pytest.mark.usefixtures("near")
async def test_what_is_no_answer_is_said_and_not_followed(said: Any, problem: str) -> None:
    found = await answer_to(said)
    assert isinstance(found, str)
    assert found.startswith(problem)


@pytest.mark.usefixtures("near")
async def test_names_that_the_ledger_does_not_know_are_dropped() -> None:
    stranger = Holder(Pod("uid-made-up", "kube-system", "made-up"), a_share(CARD))
    lies = [a_used_share(CARD, stranger, 1)] * 100 + [a_used_share(a_card(0, "gpu-9"), WEB, 1)]
    cards = [*ANSWER["cards"], a_used_card(a_card(0, "gpu-9"), 7)]
    found = await answer_to(ANSWER | {"cards": cards, "containers": [*lies, *ANSWER["containers"]]})
    assert isinstance(found, NodeUsage)
    assert [each.pod_uid for each in found.containers] == ["uid-web"]
    assert [each.uuid for each in found.cards] == [CARD.uuid]


@pytest.mark.usefixtures("near")
async def test_an_agent_that_takes_its_time_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "AGENT_TIMEOUT_S", 0.1)
    go_on = threading.Event()

    def answer(_: str) -> Said:
        go_on.wait(5)
        return 200, b""

    with an_agent_server(answer) as port:
        found = await usage_of({"gpu-1": port}).answers()
        go_on.set()
    assert found["gpu-1"] == feed.NO_ANSWER


@pytest.mark.usefixtures("near")
async def test_who_was_not_asked_in_time_is_not_asked_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "AT_ONCE", 1)
    monkeypatch.setattr(feed, "ALL_TIMEOUT_S", 0.2)
    go_on = threading.Event()

    def answer(_: str) -> Said:
        go_on.wait(5)
        return 200, b""

    with an_agent_server(answer) as port:
        found = await usage_of({"gpu-1": port, "gpu-2": port}).answers()
        go_on.set()
    assert set(found.values()) == {feed.NO_TIME}


@pytest.mark.usefixtures("near")
async def test_nobody_listens_there() -> None:
    with an_agent_server(ANSWER) as port:
        pass
    found = (await usage_of({"gpu-1": port}).answers())["gpu-1"]
    assert found == "its agent can't be reached: ClientConnectorError"


async def test_an_address_that_leads_to_the_operators_own_machine_is_not_asked() -> None:
    with an_agent_server(ANSWER) as port:
        for address in ("127.0.0.1", "169.254.169.254", ""):
            found = (await usage_of({"gpu-1": port}, address).answers())["gpu-1"]
            assert found == "its agent's pod has no address that could be asked"
