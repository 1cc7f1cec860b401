"""The data that the page gets: every node encoded once after it has changed, and only while a page is open.

The event loop has kube-scheduler to answer, too. So all that grows with the cluster is done in slices of a few
milliseconds, and a client that reads slowly gets one message with everything that has changed meanwhile.

Nodes come from the ledger, use of their cards from their agents. Agents are asked while somebody looks, and only then.
An agent is as trustworthy as its node: its answer is bounded in size and time, read strictly, and of it only that is
kept which is about the node's own cards and their holders. It is asked over plain HTTP in the pod network, with nothing
that would be of use to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import aiohttp
import orjson

from gpuledger.controller.web.pace import Pace
from gpuledger.controller.web.reports import Reports
from gpuledger.formats.kubernetes.node import AgentPod, host_of
from gpuledger.formats.node_usage import LONGEST_ANSWER_BYTES, read_node_usage
from gpuledger.kube_api.client import read_at_most
from gpuledger.ledger.book import ChangeLog, Ledger
from gpuledger.ledger.budgets import Spending
from gpuledger.ledger.quotas import Quotas, stated
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import AnswerTooLong, BadInput, NotFound
from gpuledger.model.gang import Counted
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeUsage
from gpuledger.reports.account import Question
from gpuledger.reports.cards import NO_AGENT, TOO_LONG, TOO_OLD, NodeCards, known_part, node_use, report_of
from gpuledger.reports.explanation import Kind
from gpuledger.reports.records import time_text
from gpuledger.workflows.tasks import all_within
from gpuledger.workflows.trail import RecordFilter
from gpuledger.workflows.wiring import Workflows

AT_ONCE = 32
"""Agents that are asked at a time."""
AGENT_TIMEOUT_S = 5.0
"""An agent waits three seconds for its driver, and then has what that said before."""
ALL_TIMEOUT_S = 20.0
"""For all agents together: agents that were not reached by then are left out."""

ANSWERS_KEPT_S = 5.0
"""How long answers are shared by all readers."""
ANSWERS_KEPT_TIMES = 10.0
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
        """Return every node's agent's answer, usually some seconds old at most."""
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
        self._good_until_s = clock() + max(ANSWERS_KEPT_S, ANSWERS_KEPT_TIMES * (clock() - begin_s))
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


async def _no_agents() -> Answers:
    raise NotFound("no agents are asked here", 404)


async def _no_reports(_: Question) -> Json:
    raise BadInput("no reports are made here")


Explain = Callable[[Kind, str, str], Awaitable[Json]]
"""Takes kind, namespace and name, and returns why that waits; raises NotFound if nothing is known of it."""


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
    history: Callable[[RecordFilter, int], Json]
    """Returns what has happened, the newest last: so many records at most."""
    active_elsewhere: Callable[[], str | None] = lambda: None
    """Returns the name of the active replica, empty if there is none; None if this one is active."""
    gang_of: Callable[[str], str] = lambda uid: ""
    """Pod UID -> its gang."""
    namespaces: Callable[[], Iterable[Json]] = tuple
    """Yields the namespaces that have a quota, with its limits. Read in slices."""
    queues: Callable[[], Iterable[Json]] = tuple
    """Yields Kueue's ClusterQueues."""
    growth: Callable[[], Iterable[Json]] = tuple
    """Yields the templates of which nodes are asked for."""
    grafana_url: str = ""
    """The dashboard to which the page links, empty if to none."""
    agents_answers: Callable[[], Awaitable[Answers]] = _no_agents
    report: Callable[[Question], Awaitable[Json]] = _no_reports
    """Returns what was held over days: see reports.py."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Returns the time of day by which days begin and end."""
    _taken: int = field(default=0, init=False)  # the ledger's number of its last change that was looked at
    _touches: ChangeLog = field(default_factory=ChangeLog, init=False)  # an edition is the number of one

    def note_pod(self, pod_uid: str) -> None:
        """Record that something is shown of a pod, wherever it holds a card, that has changed."""
        for card, _ in self.ledger.holders.of(pod_uid):
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
        """Return the use of each node's cards beside the shares, made one by one. Raises NotFound."""
        answers = await self.agents_answers()
        nodes = (self.node(name) for name in sorted(self.ledger.node_names()))
        return (node_use(node, answers.get(node.name, NO_TIME), idle_after_s).json() for node in nodes if node)


def node_cards(ledger: Ledger, name: str, gang_of: Callable[[str], str] = lambda uid: "") -> NodeCards | None:
    """Return a node's cards as they are now; None if it has none."""
    entries = ledger.entries_of_node(name)
    return NodeCards(name, tuple(report_of(entry, gang_of) for entry in entries)) if entries else None


def operators_source(workflows: Workflows) -> LedgerSource:
    """Return the page's data of an operator."""
    ledger, trail = workflows.context.ledger, workflows.context.trail

    async def explain(kind: Kind, namespace: str, name: str) -> Json:
        return (await workflows.explainer.explain(kind, namespace, name)).json()

    def history(wanted: RecordFilter, limit: int) -> Json:
        records, more = trail.latest(wanted, limit)
        since = trail.kept_since
        return {
            "kept": trail.kept,
            "dropped": trail.dropped,
            "keptSince": None if since is None else time_text(since),
            "more": more,
            "records": (record.json() for record in records),
        }

    def node_names() -> list[str]:
        return sorted(ledger.node_names())

    reports = Reports(ledger, workflows.context.store, workflows.context.clock.wall)
    return LedgerSource(
        ledger,
        waiting=lambda: (report.json() for report in workflows.why_waiting.reports()),
        explain=explain,
        history=history,
        active_elsewhere=workflows.context.leadership.active_elsewhere,
        gang_of=workflows.gangs.members.name_of,
        namespaces=partial(_limited, ledger.quotas, workflows.accounting.budgets.all),
        queues=lambda: (state.json() for state in workflows.queues.objects.states()),
        growth=lambda: (each.json() for each in workflows.growth.nodes.wanted()),
        grafana_url=workflows.context.settings.grafana_url,
        agents_answers=AgentsUsage(workflows.agents.by_node, node_names, partial(node_cards, ledger)).answers,
        report=reports.of,
        now=reports.now,
    )


AMOUNT_NAMES = {Counted.MEMORY: "memoryMiB", Counted.CORES: "cores", Counted.SLOTS: "number"}
"""What a limit counts, by the name that cards and shares have for it in JSON."""


def _limited(quotas: Quotas, budgets: Callable[[], Iterable[tuple[str, Spending]]]) -> Iterator[Json]:
    spent: defaultdict[str, list[Spending]] = defaultdict(list)
    for namespace, each in budgets():
        spent[namespace].append(each)
    for namespace in sorted({*quotas.limited(), *spent}):
        yield {
            "namespace": namespace,
            "quota": [
                {
                    "resourceQuota": limit.quota,
                    "key": limit.key,
                    "counted": AMOUNT_NAMES[limit.counted],
                    "vendor": limit.vendor,
                    "model": limit.model or None,
                    "limit": limit.most,
                }
                for limit in stated(quotas.limits(namespace))
            ],
            "budgets": [
                {
                    "resourceQuota": each.budget.quota,
                    "key": each.budget.key,
                    "cardHours": each.budget.card_hours,
                    "spentCardHours": each.hours_shown,
                    "until": each.end.isoformat(),
                }
                for each in spent[namespace]
            ],
        }


INTERVAL_S = 0.5
"""How often it is looked what has changed: two messages a second at most."""

TIMER_S = 0.01
"""How much too early a timer may ring."""

FAULT_PAUSE_S = 5.0
"""After an unexpected error: the page must not end the operator, nor fill its log."""

KEPT_S = 60.0
"""How long encoded nodes stay after the last look: some 5 kB for eight cards."""

GONE_KNOWN = 1_000
"""Nodes that are gone, kept for clients that are behind; a client further behind gets everything."""

CHUNK_BYTES = 64 * 1024


logger = logging.getLogger(__name__)


LISTS = ("waiting", "namespaces", "queues", "growth")
"""Sent beside nodes, each as a whole when something in it has changed: names in LedgerSource and in the JSON."""


@dataclass(frozen=True, slots=True)
class FeedChange:
    """The changes that a client lacks. `nodes` are names, `lists` encoded JSON as of the question."""

    edition: int
    full: bool
    """Everything: what the client knows beside it is no longer so."""
    nodes: tuple[str, ...]
    gone: tuple[str, ...]
    lists: Mapping[str, bytes]
    """Those of LISTS that are not as before."""


class Feed:
    """The encoded cluster, with an edition that grows by one whenever something in it has changed.

    Editions begin with the time, in microseconds: those of an earlier process, or of another replica, are unknown.
    """

    def __init__(self, source: LedgerSource, first_edition: int | None = None) -> None:
        self._source = source
        self._first = time.time_ns() // 1000 if first_edition is None else first_edition
        self.edition = self._first
        self._seen = -1  # edition of the source
        self._nodes: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        """Node name -> edition of its last change and JSON, the latest last."""
        self._gone: BoundedMap[str, int] = BoundedMap(GONE_KNOWN)  # node name -> edition
        self._forgotten = self._first  # clients behind this edition may have missed that a node is gone
        self._lists = dict.fromkeys(LISTS, (self._first, b"[]"))  # name -> edition of its last change and JSON
        self._grafana = orjson.dumps(source.grafana_url or None)
        self._elsewhere = source.active_elsewhere()
        self._refreshing = asyncio.Lock()
        self._refreshed_s = float("-inf")
        self._changed = asyncio.Event()  # replaced by a new one with each edition
        self._watchers = 0
        self._ticker: asyncio.Task[None] | None = None
        self._dropping: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()

    @property
    def watchers(self) -> int:
        """How many follow the changes now."""
        return self._watchers

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Keep the feed up to date as long as this context lasts."""
        self._watchers += 1
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers and self._ticker is not None:
                self._ticker.cancel()
                self._ticker = None
            self._drop_later()

    async def refresh(self) -> None:
        """Encode what has changed, unless that was just done: what is known is half a second old, then."""
        async with self._refreshing:
            if _now_s() - self._refreshed_s < INTERVAL_S:
                return
            edition, seen, pace = self.edition + 1, self._source.edition, Pace()
            names = [] if seen == self._seen else list(self._source.touched_since(self._seen))
            changed = False
            try:
                for name in names:
                    changed |= self._encode(name, edition)
                    await pace.keep()
                self._seen = seen
                elsewhere = self._source.active_elsewhere()
                changed |= elsewhere != self._elsewhere
                self._elsewhere = elsewhere
                for name in LISTS:
                    changed |= await self._encode_list(name, edition, pace)
                self._refreshed_s = _now_s()
            finally:  # what is encoded by then is news, even if the last client leaves in the middle of it
                if changed:
                    self.edition = edition
                    self._changed.set()
                    self._changed = asyncio.Event()
                self._drop_later()

    def since(self, edition: int | None) -> FeedChange:
        """Return the changes since the client's edition; everything, if it is none of ours."""
        if edition is None or not self._forgotten <= edition <= self.edition or edition == self._first:
            return FeedChange(
                self.edition, True, tuple(self._nodes), (), {n: each for n, (_, each) in self._lists.items()}
            )
        nodes = tuple(name for name, (changed, _) in _newer(reversed(self._nodes.items()), edition))
        gone = tuple(name for name, gone_since in self._gone.items() if gone_since > edition)
        lists = {name: encoded for name, (changed, encoded) in self._lists.items() if changed > edition}
        return FeedChange(self.edition, False, nodes, gone, lists)

    async def next(self, edition: int, timeout_s: float) -> bool:
        """Wait until there is a later edition; return False if there is none for so long, or no more will come."""
        changed = self._changed
        if self.edition == edition and not self.closed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await changed.wait()
        return self.edition != edition and not self.closed.is_set()

    def chunks(self, change: FeedChange) -> Iterator[bytes]:
        """Yield the JSON of a change piece by piece, each node as it is when its turn comes.

        A node that is gone by then is left out, and named as gone by the next change.
        """
        yield b'{"edition":%d,"full":%s,"gone":%s,"activeElsewhere":%s,"grafanaUrl":%s,%s,"nodes":[' % (
            change.edition,
            b"true" if change.full else b"false",
            orjson.dumps(change.gone),
            orjson.dumps(self._elsewhere),
            self._grafana,
            b",".join(b'"%s":%s' % (name.encode(), change.lists.get(name, b"null")) for name in LISTS),
        )
        parts, size, first = [], 0, True
        for name in change.nodes:
            known = self._nodes.get(name)
            if known is None:
                continue
            if not first:
                parts.append(b",")
            first = False
            parts.append(known[1])
            size += len(known[1])
            if size >= CHUNK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        yield b"".join([*parts, b"]}"])

    def close(self) -> None:
        """Wake up all clients that wait for a change."""
        self.closed.set()
        self._changed.set()
        if self._dropping is not None:
            self._dropping.cancel()

    async def _tick(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception:
                logger.exception("the page's data can't be updated")
                await asyncio.sleep(FAULT_PAUSE_S)
            await asyncio.sleep(INTERVAL_S + TIMER_S)

    def _encode(self, name: str, edition: int) -> bool:
        report = self._source.node(name)
        known = self._nodes.get(name)
        if report is None:
            if known is None:
                return False
            del self._nodes[name]
            forgotten = self._gone.note(name, edition)
            if forgotten is not None:
                self._forgotten = forgotten
            return True
        encoded = orjson.dumps(report.json())
        if known is not None and known[1] == encoded:
            return False
        self._nodes[name] = (edition, encoded)
        self._nodes.move_to_end(name)
        self._gone.drop(name)
        return True

    async def _encode_list(self, name: str, edition: int, pace: Pace) -> bool:
        parts = []
        for each in getattr(self._source, name)():
            parts.append(orjson.dumps(each))
            await pace.keep()
        encoded = b"[" + b",".join(parts) + b"]"
        if encoded == self._lists[name][1]:
            return False
        self._lists[name] = edition, encoded
        return True

    def _drop_later(self) -> None:
        """Forget everything when no page was open for a while; a client that comes back then gets everything."""
        if self._dropping is not None:
            self._dropping.cancel()
        if not self.closed.is_set():
            self._dropping = asyncio.get_running_loop().call_later(KEPT_S, self._drop)

    def _drop(self) -> None:
        if self._watchers or self._refreshing.locked():
            self._drop_later()
            return
        self._dropping = None
        self.edition += 1
        self._forgotten = self._first = self.edition
        self._nodes.clear()
        self._gone = BoundedMap(GONE_KNOWN)
        self._lists = dict.fromkeys(LISTS, (self.edition, b"[]"))
        self._seen, self._refreshed_s = -1, float("-inf")


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _newer(nodes: Iterable[tuple[str, tuple[int, bytes]]], edition: int) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for name, known in nodes:
        if known[0] <= edition:
            return
        yield name, known
