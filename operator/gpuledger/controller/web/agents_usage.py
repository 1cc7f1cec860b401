"""Asks the nodes' agents what is used of their cards, when somebody looks, and only then.

An agent is as trustworthy as its node: its answer is bounded in size and time, read strictly, and of it only that is
kept which is about the node's own cards and their holders. It is asked over plain HTTP in the pod network, with nothing
that would be of use to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import aiohttp
import orjson

from gpuledger.formats.node_usage import LONGEST_ANSWER_BYTES, read_node_usage
from gpuledger.formats.objects.agent_pod import AgentPod, host_of
from gpuledger.kube_api.pages import read_at_most
from gpuledger.model.errors import AnswerTooLong, BadInput
from gpuledger.model.node_usage import NodeUsage
from gpuledger.reports.cards import NodeCards
from gpuledger.reports.usage import NO_AGENT, TOO_LONG, TOO_OLD, known_part
from gpuledger.workflows.tasks.together import all_within

AT_ONCE = 32
"""Agents that are asked at a time."""
AGENT_TIMEOUT_S = 5.0
"""An agent waits three seconds for its driver, and then has what that said before."""
ALL_TIMEOUT_S = 20.0
"""For all agents: whoever was not asked by then is not asked any more."""

KEPT_S = 5.0
"""How long answers are good for everybody who looks."""
KEPT_TIMES = 10.0
"""They are kept at least so many times as long as it took to get them: asking takes a tenth of the time at most."""

NO_ADDRESS = "its agent's pod has no address that could be asked"
NO_TIME = f"not asked: others took {ALL_TIMEOUT_S:g} s"
NO_ANSWER = f"its agent does not answer within {AGENT_TIMEOUT_S:g} s"

Answers = Mapping[str, NodeUsage | str]
"""Node name -> what its agent has measured, or in a sentence why that is not known."""


class AgentsUsage:
    """The agents' answers: all who look at the same time share them."""

    def __init__(
        self,
        agents: Callable[[], Mapping[str, AgentPod]],
        nodes: Callable[[], list[str]],
        node: Callable[[str], NodeCards | None],
    ) -> None:
        """Take what returns the agents' pods by node, the names of the nodes with cards, and one of these nodes."""
        self._agents, self._nodes, self._node = agents, nodes, node
        self._asking: asyncio.Task[Answers] | None = None
        self._good_until_s = 0.0  # loop time
        self._answers: Answers = {}

    async def answers(self) -> Answers:
        """Return what every node's agent says, as it was some seconds ago at most; as a rule."""
        if asyncio.get_running_loop().time() < self._good_until_s:
            return self._answers
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_all())
            self._asking.add_done_callback(self._asked)
        return await asyncio.shield(self._asking)  # others wait for the same answers when this request is given up

    def _asked(self, task: asyncio.Task[Answers]) -> None:
        self._asking = None
        if not task.cancelled() and not task.exception():
            self._answers = task.result()

    async def _ask_all(self) -> Answers:
        clock = asyncio.get_running_loop().time
        begin_s, agents, names = clock(), self._agents(), self._nodes()
        answers: dict[str, NodeUsage | str] = {name: NO_TIME if name in agents else NO_AGENT for name in names}
        turns = asyncio.Semaphore(AT_ONCE)
        limit = aiohttp.ClientTimeout(total=AGENT_TIMEOUT_S)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=AT_ONCE, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=limit,
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,  # a packed answer could be of any size
        ) as session:

            async def ask(agent: AgentPod) -> None:
                async with turns:
                    answers[agent.node_name] = await self._ask(session, agent)

            await all_within(ALL_TIMEOUT_S, [ask(agents[name]) for name in names if name in agents])
        self._good_until_s = clock() + max(KEPT_S, KEPT_TIMES * (clock() - begin_s))
        return answers

    async def _ask(self, session: aiohttp.ClientSession, agent: AgentPod) -> NodeUsage | str:
        host = host_of(agent.address)
        if not host or not agent.port:
            return NO_ADDRESS
        try:
            async with session.get(f"http://{host}:{agent.port}/usage", allow_redirects=False) as response:
                if response.status != 200:
                    return TOO_OLD if response.status == 404 else f"its agent answers {response.status}"
                answer = await read_at_most(response, LONGEST_ANSWER_BYTES)
            node = self._node(agent.node_name)
            usage = read_node_usage(orjson.loads(answer), agent.node_name)
            return NO_AGENT if node is None else known_part(usage, node)
        except AnswerTooLong:
            return TOO_LONG
        except TimeoutError:
            return NO_ANSWER
        except (aiohttp.ClientError, OSError) as error:
            return f"its agent can't be reached: {type(error).__name__}"
        except (BadInput, orjson.JSONDecodeError) as error:
            return f"its agent's answer can't be read: {error}"
