"""`top --watch`: on a terminal one picture that changes, anywhere else a line for each thing that has changed.

The picture is on the terminal's other screen: the first one is there again in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import aiohttp

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.output import ALLOCATIONS, Screen, data, plural, selector_of, utc_now, write
from gpuledger.command_line.top.rows import (
    NODES,
    Line,
    OtherNode,
    is_cordoned,
    lines_of,
    nodes_selected,
    top_json,
    top_table,
)
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.watch import follow
from gpuledger.model.errors import ApiError
from gpuledger.model.json_object import Json
from gpuledger.model.share import StoredCard
from gpuledger.reports.cards import CardReport, report_of_stored
from gpuledger.reports.tables import Part, Terminal


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
        """Return a function that takes the UIDs of a list that is read from now on: cards missing in it are gone."""
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
        """Return a function that takes the UIDs of all nodes that are cordoned."""
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


PAUSE_S = 0.5
"""Between two pictures: people read no faster."""

LOOK_S = 1.0
"""How often the size of the terminal is looked at."""

KEYS = {"nodes": "node", "cards": "uuid", "models": "model", "namespaces": "namespace"}
"""View -> what names an element of its data."""


@dataclass(frozen=True, slots=True)
class TopOptions:
    """The view to show, and its form."""

    view: str
    output: str
    sort: str | None
    terminal: Terminal
    node: str | None = None
    with_gpus: Sequence[OtherNode] = ()
    """Nodes that offered GPUs at the start: those that have none in the ledger are shown, too."""

    def lines(self, reports: Sequence[CardReport], cordoned: Container[str] = ()) -> list[Line]:
        """Return the rows of the view; `cordoned` are the nodes that are."""
        in_ledger = {report.card.node_name for report in reports}
        others = [
            replace(node, cordoned=node.name in cordoned) for node in self.with_gpus if node.name not in in_ledger
        ]
        return lines_of(self.view, reports, self.sort, others, cordoned)


async def watch_top(
    cluster: ClusterAccess, options: TopOptions, objects: list[Json], nodes: Sequence[Json] | None = None
) -> None:
    """Show a view and every change of it, until cancelled.

    `objects` are the cards as they were just read, and `nodes` the Nodes, None if they can't be read or do not matter.
    """
    watch = CardWatch(options.node, objects, nodes)
    if sys.stdout.isatty() and options.output in ("table", "wide"):
        await _draw(cluster, options, watch)
    else:
        await _append(cluster, options, watch)


def picture(
    options: TopOptions,
    reports: Sequence[CardReport],
    trouble: str,
    height: int,
    now: str,
    cordoned: Container[str] = (),
) -> list[str]:
    """Return the lines that fit on the screen: a head, the table, and how many rows are left out."""
    terminal, lines = options.terminal, options.lines(reports, cordoned)
    cards = plural(len(reports), "card")
    head = [("gpuledger top ", "bold"), (f"{options.view}  {cards}  {now}", "")]
    if trouble:
        head.append((f"  no news: {trouble}", "yellow"))
    rows = top_table(options.view, lines, terminal, options.output == "wide", sums=True)
    room = max(height - 2, 2)
    if len(rows) > room:
        sums = rows[len(lines) + 1 :]  # after the titles and the rows: what all of it comes to
        left_out = len(lines) - (room - 2 - len(sums))
        rows = [
            *rows[: room - 1 - len(sums)],
            *sums,
            terminal.paint(f"... {left_out} more, a smaller part: --node", "dim"),
        ]
    return [_cut(terminal, head), "", *rows]


async def _draw(cluster: ClusterAccess, options: TopOptions, watch: CardWatch) -> None:
    screen = Screen(sys.stdout)
    with screen:
        async with followed(cluster, options.node, watch) as check:
            while True:
                size = shutil.get_terminal_size()
                shown = replace(options, terminal=replace(options.terminal, width=size.columns))
                now = f"{utc_now().astimezone():%H:%M:%S}"
                lines = picture(shown, _reports(watch), watch.trouble, size.lines, now, watch.cordoned())
                screen.show(lines[: size.lines])
                await asyncio.sleep(PAUSE_S)
                await _news(watch, lambda size=size: size != shutil.get_terminal_size())  # type: ignore[misc]
                check()


async def _news(watch: CardWatch, otherwise: Callable[[], bool]) -> None:
    """Wait until there is news, or until something else is the case."""
    while not otherwise():
        try:
            async with asyncio.timeout(LOOK_S):  # wait_for loses a Ctrl-C that comes together with news
                await watch.news.wait()
        except TimeoutError:
            continue
        break
    watch.news.clear()


async def _append(cluster: ClusterAccess, options: TopOptions, watch: CardWatch) -> None:
    changes = Changes(options)
    write(changes.of(_reports(watch), watch.cordoned()))
    trouble = ""
    async with followed(cluster, options.node, watch) as check:
        while True:
            await watch.news.wait()
            check()
            watch.news.clear()
            if watch.trouble and watch.trouble != trouble:
                sys.stderr.write(f"no news: {watch.trouble}\n")
            trouble = watch.trouble
            write(changes.of(_reports(watch), watch.cordoned()))
            await asyncio.sleep(PAUSE_S)


class Changes:
    """The news of a view since the last call: at first, all of it."""

    def __init__(self, options: TopOptions) -> None:
        self._options = options
        self._lines: dict[str, Line] = {}
        self._data: dict[str, Json] = {}
        self._first = True

    def of(self, reports: Sequence[CardReport], cordoned: Container[str] = ()) -> list[str]:
        """Return the lines to print: rows, or one JSON text, or one YAML document."""
        if self._options.output in ("table", "wide"):
            return self._rows(reports, cordoned)
        return self._documents(reports, cordoned)

    def _rows(self, reports: Sequence[CardReport], cordoned: Container[str]) -> list[str]:
        options = self._options
        lines = options.lines(reports, cordoned)
        before, self._lines = self._lines, {line.name: line for line in lines}
        gone = [replace(line, state="gone") for name, line in before.items() if name not in self._lines]
        new = {line.name for line in lines if before.get(line.name) != line} | {line.name for line in gone}
        # All of them, so that the columns stay where they are as long as nothing grows.
        titles, *rows = top_table(options.view, [*lines, *gone], options.terminal, options.output == "wide")
        shown = [row for line, row in zip([*lines, *gone], rows, strict=True) if line.name in new]
        first, self._first = self._first, False
        return [titles, *shown] if first else shown

    def _documents(self, reports: Sequence[CardReport], cordoned: Container[str]) -> list[str]:
        view, key = self._options.view, KEYS[self._options.view]
        found = {each[key]: each for each in top_json(view, reports, cordoned=cordoned)[view]}
        before, self._data = self._data, found
        new = [each for name, each in found.items() if before.get(name) != each]
        gone = [name for name in before if name not in found]
        first, self._first = self._first, False
        if not (new or gone or first):
            return []
        content = {view: new, "gone": gone}
        if self._options.output == "yaml":
            return ["---", data(content, "yaml").rstrip("\n")]
        import orjson

        return [orjson.dumps(content).decode()]


def _reports(watch: CardWatch) -> list[CardReport]:
    return [report_of_stored(card) for card in watch.cards.values()]


def _cut(terminal: Terminal, parts: Sequence[Part]) -> str:
    room, cut = terminal.width, []
    for text, style in parts:
        kept = text if room is None else text[:room]
        room = None if room is None else room - len(kept)
        cut.append(terminal.paint(kept, style))
    return "".join(cut)
