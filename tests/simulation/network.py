"""Between an operator and the API server: requests and answers that are late or lost; `watches.py` has the watches.

A request has two moments: when the API server carries it out, and when the client hears of it. A client that has
given up, or died, does not stop a request that is under way.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gpuledger.kube_api.client import REQUEST_TIMEOUT_S, Page, pages_of
from gpuledger.model.errors import ApiError, Conflict, Denied, Invalid, NotFound, Unreachable
from simulation.api_server import LISTED, Operation, route, selector_of
from simulation.item import LATE_S, SOON, SOON_S, Item
from simulation.lists import expired, token_of
from simulation.watches import PlainWatch

if TYPE_CHECKING:
    from simulation.operator_process import OperatorProcess
    from simulation.world import World

Json = dict[str, Any]

_LISTS = (Operation.LIST_NODES, Operation.LIST_CARDS, Operation.LIST_PODS, Operation.LIST_LEASES)
_READS = (*_LISTS, Operation.LIST_BUDGETS, Operation.LIST_SELECTED_PODS, Operation.READ_CARD, Operation.READ_POD)

_REFUSALS: dict[int, Callable[[], ApiError]] = {
    429: lambda: Unreachable("429: too many requests", 429, 1.0),
    500: lambda: Unreachable("500: internal error", 500),
    409: lambda: Conflict("409: the object has been modified", 409),
    410: expired,
    422: lambda: Invalid("422: a policy does not like it", 422),
    403: lambda: Denied("403: a policy forbids it", 403),
}

_WRITES_REFUSED = (429, 500, 409, 422, 403)


class NoClock:
    """An API server that does not say the time: no accounts are kept here, whose tests have fakes of their own."""

    @staticmethod
    def now() -> None:
        """Return nothing."""


class Client:
    """Stands where KubeClient stands in an operator."""

    server_clock = NoClock()

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
        if "/resourcequotas/" in path:  # what is used of a quota is shown to people, and to nobody here
            raise NotFound(f"{path}: there is none", 404)
        operation, key = route(method, path)
        if operation is Operation.EVICT and isinstance(body, dict):
            self._world.check_evicted(self._process, body["deleteOptions"]["preconditions"]["uid"])
        if operation is Operation.DELETE_POD:
            self._world.tell_lie(f"{self._process.name} deletes a pod, whatever its budgets say")
        field_selector = parameters.get("fieldSelector") if parameters else None
        if operation is Operation.BIND and isinstance(body, dict):
            self._world.check_sent(self._process, body)
        token = token_of(parameters)
        request = Request(self._world, self._process, operation, key, body, field_selector, token)
        timer = self._process.loop.call_later(timeout_s, request.give_up)
        self._world.pend(request)
        try:
            answer: Json = await request.future
        finally:
            timer.cancel()
        return answer

    async def pages(self, path: str, parameters: Mapping[str, str] | None = None) -> AsyncIterator[Page]:
        """Yield the items of a list, page by page."""
        async for page in pages_of(self.request, path, parameters):
            yield Page(page)

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch that goes on from a version."""
        operation, _ = route("GET", path)
        kind = LISTED[operation]
        selector = selector_of(parameters.get("fieldSelector"))
        version = int(parameters["resourceVersion"])
        if self._world.api.is_down:
            raise Unreachable("connection refused")
        if version < self._world.api.oldest:
            raise Conflict(f"410: too old resource version: {version}", 410)
        watch = PlainWatch(self._world, self._process, kind, selector)
        self._process.watches.append(watch)
        watch.start(version)
        try:
            yield watch
        finally:
            watch.stop()


class Request(Item):
    """A request on its way to the API server."""

    __slots__ = ("body", "field_selector", "future", "key", "operation", "process", "refusals", "starts", "token")

    def __init__(
        self,
        world: "World",
        process: "OperatorProcess",
        operation: Operation,
        key: str,
        body: Any,
        field_selector: str | None,
        token: str = "",
    ) -> None:
        super().__init__(world)
        self.token = token
        self.process = process
        self.operation = operation
        self.key = key
        self.body = body
        self.field_selector = field_selector
        self.future = process.loop.create_future()
        self.starts = world.api.starts
        self.refusals = ((410, 429, 500) if token else (429, 500)) if operation in _READS else _WRITES_REFUSED

    def what(self) -> str:
        late = "" if self.is_awaited() else " (nobody waits for it any more)"
        about = _changes(self.body) if self.operation is Operation.WRITE_STATUS else ""
        page = ", the next page" if self.token else ""
        return f"{self.process.name}: {self.operation} {self.key or self.field_selector or ''}{page}{about}{late}"

    @property
    def group(self) -> str:
        return self.operation

    def is_routine(self) -> bool:
        return self.operation in _LISTS

    def is_awaited(self) -> bool:
        """Return whether a client is there to hear the answer."""
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
            if self.operation is Operation.BIND and self.refusals[way - 5] in (403, 422):
                self.world.bind_refused = True
            if self.operation is Operation.WRITE_STATUS and self.refusals[way - 5] in (403, 422):
                self.world.write_refused = True
            self._answer(None, _REFUSALS[self.refusals[way - 5]]())
        elif way == 0:
            self.do()

    def do(self) -> None:
        api, answer, error = self.world.api, None, None
        if self.starts != api.starts or api.is_down:
            self._answer(None, Unreachable(f"{self.operation} {self.key}: connection reset"))
            return
        try:
            if not self.token:
                answer = api.carry_out(self.operation, self.key, self.body, self.field_selector)
            if self.operation in LISTED:
                answer = self.world.lists.page(self.token, answer)
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
            if self.request.operation is Operation.LIST_NODES and self.answer:
                for node in self.answer["items"]:
                    self.request.process.view.show(node)
            self.request.future.set_result(self.answer)
