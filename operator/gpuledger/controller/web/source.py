"""The data of the page: nodes from the ledger, use of their cards from their agents, the rest from its part.

Agents are asked while somebody looks, and only then. An agent is as trustworthy as its node: its answer is bounded in
size and time, read strictly, and of it only that is kept which is about the node's own cards and their holders. It is
asked over plain HTTP in the pod network, with nothing that would be of use to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import aiohttp
import orjson

from gpuledger.formats.kubernetes.node import AgentPod, host_of
from gpuledger.formats.node_usage import LONGEST_ANSWER_BYTES, read_node_usage
from gpuledger.kube_api.client import read_at_most
from gpuledger.ledger.book import ChangeLog, Ledger
from gpuledger.model.errors import AnswerTooLong, BadInput, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeUsage
from gpuledger.reports.cards import NO_AGENT, TOO_LONG, TOO_OLD, NodeCards, known_part, node_use, report_of
from gpuledger.workflows.pending.trail import RecordFilter
from gpuledger.workflows.tasks import all_within
from gpuledger.workflows.wiring import Workflows

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


async def _no_workloads(namespace: str, name: str) -> Json:
    raise NotFound("there are no workloads here", 404)


async def _no_agents() -> Answers:
    raise NotFound("no agents are asked here", 404)


Explain = Callable[[str, str], Awaitable[Json]]
"""Takes namespace and name; raises NotFound if nothing is known of it."""


@dataclass(slots=True, eq=False)
class LedgerSource:
    """The ledger as people see it: what the API server stores, not what is only on its way there.

    The ledger tells of changes of *room*. A share that arrives where it was on hold, or another reason for a card's
    phase, changes no room, and is seen all the same: `note` has to be called for these.
    """

    ledger: Ledger
    waiting: Callable[[], Iterable[Json]]
    """Yields the waiting pods as they go over the wire. Read in slices: pods can come and go between two."""
    explain: Explain
    """Returns why a pod waits, or where it is."""
    explain_gang: Explain
    """Returns how far a gang has come."""
    history: Callable[[RecordFilter, int], Json]
    """Returns what has happened, the newest last: so many records at most."""
    active_elsewhere: Callable[[], str | None] = lambda: None
    """Returns the name of the active replica, empty if there is none; None if this one is active."""
    gang_of: Callable[[str], str] = lambda uid: ""
    """Pod UID -> its gang."""
    explain_workload: Explain = _no_workloads
    """Returns why a workload of Kueue waits."""
    agents_answers: Callable[[], Awaitable[Answers]] = _no_agents
    _taken: int = field(default=0, init=False)  # the ledger's number of its last change that was looked at
    _touches: ChangeLog = field(default_factory=ChangeLog, init=False)  # an edition is the number of one

    def note_pod(self, pod_uid: str) -> None:
        """Record that something is shown of a pod, wherever it holds a card, that has changed."""
        for card, _ in self.ledger.holders_of(pod_uid):
            self.note(card.node_name)

    def note(self, node_name: str) -> None:
        """Record that something is shown of a node that has changed. Costs next to nothing."""
        self._touches.touch(node_name)

    @property
    def edition(self) -> int:
        """Number of the last change of any node."""
        if self.ledger.changes != self._taken:
            for name in self.ledger.touched_since(self._taken):
                self._touches.touch(name)
            self._taken = self.ledger.changes
        return self._touches.changes

    def touched_since(self, edition: int) -> Iterable[str]:
        """Return the nodes that may have changed later than this edition, or gone; -1: all that have a card."""
        if edition < 0:
            return list(self.ledger.node_names())
        return [name for _, name in self._touches.since(edition)]

    def node(self, name: str) -> NodeCards | None:
        """Return a node's cards as they are now; None if it has none."""
        return node_cards(self.ledger, name, self.gang_of)

    async def usage(self, idle_after_s: int) -> Iterator[Json]:
        """Return what is used of each node's cards beside what is held, a node when it is taken. Raises NotFound."""
        answers = await self.agents_answers()
        nodes = (self.node(name) for name in sorted(self.ledger.node_names()))
        return (node_use(node, answers.get(node.name, NO_TIME), idle_after_s).json() for node in nodes if node)


def node_cards(ledger: Ledger, name: str, gang_of: Callable[[str], str] = lambda uid: "") -> NodeCards | None:
    """Return a node's cards as they are now; None if it has none."""
    entries = ledger.entries_of_node(name)
    return NodeCards(name, tuple(report_of(entry, gang_of) for entry in entries)) if entries else None


def operators_source(workflows: Workflows) -> LedgerSource:
    """Return what the page shows of an operator."""
    ledger, trail = workflows.ledger, workflows.trail

    async def explain(namespace: str, name: str) -> Json:
        return (await workflows.explainer.explain(namespace, name)).json()

    async def explain_gang(namespace: str, name: str) -> Json:
        return (await workflows.gang_reporter.explain(namespace, name)).json()

    async def explain_workload(namespace: str, name: str) -> Json:
        return (await workflows.workload_explainer.explain(namespace, name)).json()

    def history(wanted: RecordFilter, limit: int) -> Json:
        records = [record.json() for record in trail.latest(wanted, limit)]
        return {"kept": trail.kept, "dropped": trail.dropped, "records": records}

    def node_names() -> list[str]:
        return sorted(ledger.node_names())

    return LedgerSource(
        ledger,
        waiting=lambda: (report.json() for report in workflows.why_waiting.reports()),
        explain=explain,
        explain_gang=explain_gang,
        explain_workload=explain_workload,
        history=history,
        active_elsewhere=workflows.leadership.active_elsewhere,
        gang_of=workflows.gang_trials.gang_of,
        agents_answers=AgentsUsage(workflows.agents.by_node, node_names, partial(node_cards, ledger)).answers,
    )
