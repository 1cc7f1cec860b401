"""Between an operator and the API server: requests and answers that are late or lost, and watches that lag behind.

A request has two moments: when the API server carries it out, and when the client hears of it. A client that has
given up, or died, does not stop a request that is under way.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from gpuledger.kube_api.client import REQUEST_TIMEOUT_S
from gpuledger.model.errors import ApiError, Conflict, Denied, Invalid, Unreachable
from simulation.api_server import Change, Kind, Operation, Selector, route, selector_of, watch_event
from simulation.item import LATE_S, SOON, SOON_S, Item

if TYPE_CHECKING:
    from simulation.operator_process import OperatorProcess
    from simulation.world import World

Json = dict[str, Any]

_LISTS = (Operation.LIST_NODES, Operation.LIST_CARDS, Operation.LIST_PODS, Operation.LIST_LEASES)
_READS = (*_LISTS, Operation.LIST_BUDGETS, Operation.READ_CARD, Operation.READ_POD)

_REFUSALS: dict[int, Callable[[], ApiError]] = {
    429: lambda: Unreachable("429: too many requests", 429, 1.0),
    500: lambda: Unreachable("500: internal error", 500),
    409: lambda: Conflict("409: the object has been modified", 409),
    422: lambda: Invalid("422: a policy does not like it", 422),
    403: lambda: Denied("403: a policy forbids it", 403),
}

_WRITES_REFUSED = (429, 500, 409, 422, 403)


class Client:
    """Stands where KubeClient stands in an operator."""

    def __init__(self, world: "World", process: "OperatorProcess") -> None:
        self._world = world
        self._process = process

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        parameters: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        longest_bytes: int | None = None,
    ) -> Json:
        """Send one request, and wait for its answer for so long."""
        operation, key = route(method, path)
        if operation is Operation.EVICT and isinstance(body, dict):
            self._world.check_evicted(body["deleteOptions"]["preconditions"]["uid"])
        field_selector = parameters.get("fieldSelector") if parameters else None
        if operation is Operation.BIND and isinstance(body, dict):
            self._world.check_sent(self._process, body["metadata"]["uid"])
        request = Request(self._world, self._process, operation, key, body, field_selector)
        timer = self._process.loop.call_later(timeout_s, request.give_up)
        self._world.pend(request)
        try:
            answer: Json = await request.future
        finally:
            timer.cancel()
        return answer

    async def pages(self, path: str, parameters: Mapping[str, str] | None = None) -> AsyncIterator[list[Json]]:
        """Yield a list as one page."""
        yield (await self.request("GET", path, parameters=parameters))["items"]

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch that goes on from a version."""
        operation, _ = route("GET", path)
        kind = Kind.LEASE if operation is Operation.LIST_LEASES else Kind.POD
        selector = selector_of(parameters.get("fieldSelector"))
        watch = PlainWatch(self._world, self._process, kind, selector)
        self._process.watches.append(watch)
        watch.start(int(parameters["resourceVersion"]))
        try:
            yield watch
        finally:
            watch.stop()


class Request(Item):
    """A request on its way to the API server."""

    __slots__ = ("body", "field_selector", "future", "key", "operation", "process", "refusals")

    def __init__(
        self,
        world: "World",
        process: "OperatorProcess",
        operation: Operation,
        key: str,
        body: Any,
        field_selector: str | None,
    ) -> None:
        super().__init__(world)
        self.process = process
        self.operation = operation
        self.key = key
        self.body = body
        self.field_selector = field_selector
        self.future = process.loop.create_future()
        self.refusals = (429, 500) if operation in _READS else _WRITES_REFUSED

    def what(self) -> str:
        late = "" if self.is_awaited() else " (nobody waits for it any more)"
        about = _changes(self.body) if self.operation is Operation.WRITE_STATUS else ""
        return f"{self.process.name}: {self.operation} {self.key or self.field_selector or ''}{about}{late}"

    @property
    def group(self) -> str:
        return self.operation

    def is_routine(self) -> bool:
        return self.operation in _LISTS

    def is_awaited(self) -> bool:
        """Tell whether a client is there to hear the answer."""
        return self.process.alive and not self.future.done()

    def give_up(self) -> None:
        """Stop waiting; the request goes on."""
        if not self.future.done():
            self.world.note(f"{self.process.name}: no answer in time: {self.operation} {self.key}")
            self.future.set_exception(Unreachable(f"{self.operation} {self.key}: no answer in time"))

    def ways(self) -> int:
        return 5 + len(self.refusals) if self.is_awaited() else 4

    def way(self, number: int) -> str:
        names = ("", SOON, f"arrives {LATE_S:.0f} s later", "is lost", "is lost and the connection breaks")
        return names[number] if number < 5 else f"is answered with {self.refusals[number - 5]}"

    def happen(self, way: int) -> None:
        if way in (1, 2):
            self.world.put_off(self, SOON_S if way == 1 else LATE_S)
        elif way == 4:
            self._answer(None, Unreachable(f"{self.operation} {self.key}: connection reset"))
        elif way > 4:
            if self.operation is Operation.ANNOTATE:
                self.world.wake_refused = True
            if self.operation is Operation.WRITE_STATUS and self.refusals[way - 5] in (403, 422):
                self.world.write_refused = True
            self._answer(None, _REFUSALS[self.refusals[way - 5]]())
        elif way == 0:
            self.do()

    def do(self) -> None:
        api, answer, error = self.world.api, None, None
        try:
            answer = api.carry_out(self.operation, self.key, self.body, self.field_selector)
        except ApiError as refusal:
            error = refusal
            self.world.note(f"    refused: {refusal}")
        if self.operation is Operation.BIND and error is None:
            self.world.check_accepted(self.process, self.body["metadata"]["uid"])
        self._answer(answer, error)

    def _answer(self, answer: Json | None, error: ApiError | None) -> None:
        if self.is_awaited():
            self.world.pend(Answer(self, answer, error))


def _changes(operations: list[Json]) -> str:
    """Say in words what a patch of a card's status changes."""
    words = []
    for operation in operations:
        on_holder = re.fullmatch(r"/status/holders/(\d+|-)", operation["path"])
        if operation["op"] == "remove":
            words.append(f"removes no. {operation['path'].rpartition('/')[2]}")
        elif on_holder and operation["op"] == "add":
            words.append(f"adds {operation['value']['podUID']}")
        elif operation["op"] == "replace" and operation["path"].endswith("/state"):
            words.append(f"makes no. {operation['path'].split('/')[3]} {operation['value']}")
    return f" ({', '.join(words)})" if words else ""


class Answer(Item):
    """An answer on its way back."""

    __slots__ = ("answer", "error", "request")

    def __init__(self, request: Request, answer: Json | None, error: ApiError | None) -> None:
        super().__init__(request.world)
        self.request = request
        self.answer = answer
        self.error = error

    def what(self) -> str:
        request = self.request
        says = f": {self.error}" if self.error else ""
        return f"{request.process.name}: hears of {request.operation} {request.key}{says}"

    def is_void(self) -> bool:
        return not self.request.is_awaited()

    @property
    def group(self) -> str:
        return self.request.operation

    def is_routine(self) -> bool:
        return self.request.is_routine()

    def ways(self) -> int:
        return 4

    def way(self, number: int) -> str:
        return ("", SOON, "is lost", "is lost and the connection breaks")[number]

    def happen(self, way: int) -> None:
        if way == 1:
            self.world.put_off(self, SOON_S)
        elif way == 3:
            self.request.future.set_exception(Unreachable(f"{self.request.operation}: connection reset"))
        elif way == 0:
            self.do()

    def do(self) -> None:
        if self.error:
            self.request.future.set_exception(self.error)
        else:
            self.request.future.set_result(self.answer)


class Watch(Item):
    """Events on their way to one watcher, in order. It is itself what is on its way: its next event."""

    __slots__ = ("_moving", "closed", "kind", "name", "queue", "selector")

    def __init__(self, world: "World", name: str, kind: Kind, selector: Selector) -> None:
        super().__init__(world)
        self.name = name
        self.kind = kind
        self.selector = selector
        self.queue: deque[tuple[str, Json]] = deque()
        self.closed = False
        self._moving = False  # in the world, as an item, or put off

    @property
    def group(self) -> str:
        return "watch"

    def start(self, version: int | None) -> None:
        """Begin to watch: with all that there is, or with what has happened since a version."""
        if version is None:
            self.queue.extend(self._listed())
        else:
            for change in self.world.api.history:
                if change.version > version:
                    self._take(change)
        self.world.api.listeners.append(self._take)
        self._move()

    def stop(self) -> None:
        """Watch no more."""
        if not self.closed:
            self.closed = True
            self.world.api.listeners.remove(self._take)

    def show(self, kind: str, found: Json) -> None:
        """Have the watcher take in an event."""
        raise NotImplementedError

    def break_off(self) -> None:
        """Let the connection break."""
        raise NotImplementedError

    def what(self) -> str:
        kind, found = self.queue[0]
        metadata = found["metadata"]
        return f"{self.name}: sees {kind} {self.kind} {metadata['name']} version {metadata['resourceVersion']}"

    def is_void(self) -> bool:
        return self.closed or not self.queue

    def ways(self) -> int:
        return 5 if self._is_superseded() else 4

    def way(self, number: int) -> str:
        return ("", SOON, f"stalls for {LATE_S:.0f} s", "breaks", "is skipped for a later one")[number]

    def happen(self, way: int) -> None:
        self._moving = False
        if way in (1, 2):
            self._moving = True
            self.world.put_off(self, SOON_S if way == 1 else LATE_S)
            return
        if way == 3:
            self.break_off()
        else:
            kind, found = self.queue.popleft()
            if way == 0:
                self.show(kind, found)
        self._move()

    def _listed(self) -> list[tuple[str, Json]]:
        return [("ADDED", found) for found in self.world.api.objects[self.kind].values() if self.selector(found)]

    def _take(self, change: Change) -> None:
        if change.kind is self.kind:
            event = watch_event(change, self.selector)
            if event is not None:
                self.queue.append(event)
                self._move()

    def _move(self) -> None:
        if self.queue and not self._moving and not self.closed:
            self._moving = True
            self.world.pend(self)

    def _is_superseded(self) -> bool:
        """Tell whether a later event of the same object is there: then a watcher may leave this one out."""
        uid = self.queue[0][1]["metadata"]["uid"]
        return any(found["metadata"]["uid"] == uid for _, found in list(self.queue)[1:])


class KopfWatch(Watch):
    """A watch of Kopf, which lists everything again when it breaks, and never learns what is gone by then."""

    __slots__ = ("_process", "_taker")

    def __init__(
        self,
        world: "World",
        process: "OperatorProcess",
        kind: Kind,
        selector: Selector,
        taker: Callable[[Json, bool], None],
    ) -> None:
        super().__init__(world, process.name, kind, selector)
        self._process = process
        self._taker = taker

    def show(self, kind: str, found: Json) -> None:
        self._process.loop.call(self._taker, found, kind == "DELETED")

    def break_off(self) -> None:
        self.queue.clear()
        self.queue.extend(self._listed())
        self._process.operator.kopf_lists.again.set()


class PlainWatch(Watch):
    """A watch of the operator's own, as lines of JSON."""

    __slots__ = ("_error", "_lines", "_process", "_waiter")

    def __init__(self, world: "World", process: "OperatorProcess", kind: Kind, selector: Selector) -> None:
        super().__init__(world, process.name, kind, selector)
        self._process = process
        self._lines: deque[bytes] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> "PlainWatch":
        return self

    async def __anext__(self) -> bytes:
        while not self._lines:
            if self._error:
                raise self._error
            self._waiter = self._process.loop.create_future()
            await self._waiter
        return self._lines.popleft()

    def what(self) -> str:
        return super().what().replace(f" {self.kind} ", f" {self.kind} (own watch) ")

    def show(self, kind: str, found: Json) -> None:
        self._lines.append(orjson.dumps({"type": kind, "object": found}))
        self._wake()

    def break_off(self) -> None:
        self._error = aiohttp.ClientPayloadError("the watch breaks")
        self.queue.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
