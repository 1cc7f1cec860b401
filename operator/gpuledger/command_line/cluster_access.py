"""The way of all commands to the API server, with the caller's own account.

A `kubectl proxy` on a socket that only this user can open, which ends with the command: so whatever logs kubectl in
logs us in, too. Without kubectl, as in the operator's own image, the same files read by ourselves.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gpuledger.model.errors import ApiError, BadInput, GpuledgerError, Unreachable
from gpuledger.model.json_object import Json

if TYPE_CHECKING:
    from gpuledger.kube_api.client import DirectRequests, KubeClient
    from gpuledger.kube_api.plain_client import PlainClient


POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

START_TIMEOUT_S = 20.0
"""How long kubectl may take until it serves: of a port-forward, a slow login is in it."""
LOGIN_TIMEOUT_S = 300.0
"""How long the first request may take, in which kubectl logs in."""
END_TIMEOUT_S = 2.0
DIRECT_TIMEOUT_S = 60.0

SERVES = re.compile("Starting to serve")

ENDING = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
"""The signals that end a command."""

Result = TypeVar("Result")


class Kubectl:
    """The user's kubectl, with the kubeconfig and the context that the user has named."""

    def __init__(self, program: str, kubeconfig: str | None = None, context: str | None = None) -> None:
        self._program = program
        self._flags = [
            *(["--kubeconfig", kubeconfig] if kubeconfig else []),
            *(["--context", context] if context else []),
        ]

    def argv(self, *arguments: str) -> list[str]:
        """Return the command line for these arguments."""
        return [self._program, *arguments, *self._flags]

    def namespace(self) -> str:
        """Return the namespace of the context."""
        argv = self.argv("config", "view", "--minify", "--output=jsonpath={..namespace}")
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        if done.returncode:  # no kubeconfig: in a pod, or what follows will say so
            return "default"
        return done.stdout.strip() or "default"


class Helper:
    """A kubectl that works for us until it is ended: a proxy, a port-forward."""

    def __init__(self, argv: list[str], ready: re.Pattern[str]) -> None:
        """Start it; it is ready when it prints a line with this pattern."""
        self._name = f"{Path(argv[0]).name} {argv[1]}"
        self._ready = ready
        self._found: re.Match[str] | GpuledgerError | None = None
        self._lock = threading.Lock()
        self._said: list[str] = []
        # What says that it is ready, None if nothing ever will. A signal may interrupt its `get`, unlike an Event's.
        self._answers: SimpleQueue[re.Match[str] | None] = SimpleQueue()
        setpriv = shutil.which("setpriv")  # Linux' way to end it even after a SIGKILL of this program
        self._process = subprocess.Popen(
            [setpriv, "--pdeathsig", "TERM", *argv] if setpriv else argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait(self) -> re.Match[str]:
        """Wait until it is ready; return what has said so. Raises BadInput or ApiError, in kubectl's words."""
        with self._lock:  # several threads may wait for it, and each is told
            if self._found is None:
                self._found = self._first() or self._complaint()
        if isinstance(self._found, GpuledgerError):
            raise self._found
        return self._found

    def _first(self) -> re.Match[str] | None:
        try:
            return self._answers.get(timeout=START_TIMEOUT_S)
        except Empty:
            self._process.kill()
        try:
            return self._answers.get(timeout=END_TIMEOUT_S)
        except Empty:  # what it has started itself holds the pipe
            return None

    def _complaint(self) -> GpuledgerError:
        said = "".join(self._said)
        return error_of(said) if said else BadInput(f"{self._name} does not serve, and does not say why")

    def _listen(self) -> None:
        """Read its output until all writers have closed the pipe, so that it never blocks."""
        assert self._process.stdout  # noqa: S101 - it was asked for
        ready = False
        with self._process.stdout as lines:
            for line in lines:
                if ready:
                    continue
                if found := self._ready.search(line):
                    ready = True
                    self._answers.put(found)
                else:
                    self._said.append(line)
        if not ready:
            self._answers.put(None)

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def end(self) -> None:
        """End it, however it takes that."""
        self.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # What it has started itself, to log in for example, can live on and hold the pipe: no one waits for that.
        self._listener.join(END_TIMEOUT_S)


class Ending:
    """SIGINT, SIGTERM and SIGHUP while a `with` lasts: each ends this program, with 128 and its number.

    A signal raises SystemExit wherever the main thread is, and there the exception can get lost, in a callback of a
    weak reference, or become another: a Condition of threading makes a RuntimeError of it. So a signal ends the helpers
    at once, which nobody then waits for in vain, and the end of the `with` raises SystemExit for any signal that came.
    """

    def __init__(self) -> None:
        self._helpers: list[Helper] = []
        self._number = 0  # of the first signal that came
        self._held = False
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals, but none that is ignored, as under nohup or in the background. Only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._told)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back. Raises SystemExit if one came, whatever was raised since."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._number:
            sys.exit(128 + self._number)

    def start(self, argv: list[str], ready: re.Pattern[str]) -> Helper:
        """Return a new helper, which ends with a signal or by `end_helpers`. Raises SystemExit if a signal came."""
        with self.held():
            helper = Helper(argv, ready)
            self._helpers.append(helper)
        return helper

    def end_helpers(self) -> None:
        """End all helpers, however it takes that; a signal that comes meanwhile counts when the `with` ends."""
        self._held = True
        try:
            for helper in self._helpers:
                helper.end()
        finally:
            self._held = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have signals wait while something is started, until we know of it. Raises SystemExit then if one came.

        A thread that starts must not be interrupted either: `Thread.start` waits at a Condition.
        """
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before
        if self._number and not before:
            self._end()

    @property
    def was_told(self) -> bool:
        """Whether a signal has come."""
        return self._number != 0

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of a coroutine in an event loop. The first signal cancels it, as asyncio has Ctrl-C do."""
        import asyncio

        async def go() -> Result:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task  # noqa: S101 - it is this one
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                return await work()
            finally:
                self._cancel = None

        return asyncio.run(go())

    def _told(self, number: int, _: FrameType | None) -> None:
        self._number = self._number or number
        if not self._held:
            self._end()

    def _end(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel:
            cancel()
            return
        for helper in self._helpers:
            helper.terminate()
        sys.exit(128 + self._number)


class Objects:
    """The objects of some lists, each read in a thread while others go on."""

    def __init__(self, *lists: Callable[[], Iterator[list[Json]]]) -> None:
        self._read: SimpleQueue[list[Json] | Exception | None] = SimpleQueue()  # None is the end of one
        self._threads = [threading.Thread(target=self._work, args=(items,), daemon=True) for items in lists]
        for thread in self._threads:
            thread.start()

    @property
    def is_being_read(self) -> bool:
        """Return whether there may be more to come."""
        return any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Wait for the threads, whose requests have been ended: one that is at work can't outlive the interpreter."""
        for thread in self._threads:
            thread.join(END_TIMEOUT_S)

    def _work(self, items: Callable[[], Iterator[list[Json]]]) -> None:
        try:
            for some in items():
                self._read.put(some)
            self._read.put(None)
        except Exception as error:  # noqa: BLE001 - raised again where the objects are read
            self._read.put(error)

    def __iter__(self) -> Iterator[Json]:
        """Yield each object, once, as soon as it is there. Raises BadInput or a subclass of ApiError."""
        for _ in self._threads:
            while (some := self._read.get()) is not None:
                if isinstance(some, Exception):
                    raise some
                yield from some


class ClusterAccess:
    """The way to one cluster. Its kubectl starts with the first request; all of it raises BadInput and ApiError."""

    def __init__(self, kubectl: Kubectl | None, kubeconfig: str | None, context: str | None, ending: Ending) -> None:
        """Take what the user has named; None is as kubectl has it."""
        self.kubectl = kubectl
        self.notes: list[str] = []
        """What could not be read, in sentences that a command prints behind its answer."""
        self._ending = ending
        self._named = kubeconfig, context
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._proxy: Helper | None = None
        self._direct: DirectRequests | None = None
        self._lists: list[Objects] = []

    def close(self) -> None:
        """End what was started."""
        self._ending.end_helpers()
        if self._direct:
            self._direct.end()
        for objects in self._lists:
            objects.end()
        if self._directory:
            self._directory.cleanup()

    @contextlib.contextmanager
    def tidily(self) -> Iterator[Callable[[], bool]]:
        """Yield whether a signal has come: what is under way is to be ended in good order, with this access.

        Raises SystemExit at the end if one came.
        """
        with self._ending.held():
            yield lambda: self._ending.was_told

    def begin(self, path: str, *parts: Mapping[str, str]) -> Objects:
        """Start to read a list, all of it or the parts that some parameters select, side by side."""
        items = [self._items_of(path, parameters) for parameters in parts or (None,)]
        with self._ending.held():
            objects = Objects(*items)
            self._lists = [*(each for each in self._lists if each.is_being_read), objects]
        return objects

    def _items_of(self, path: str, parameters: Mapping[str, str] | None) -> Callable[[], Iterator[list[Json]]]:
        if self.kubectl is None:
            self._requests()  # here, not in the threads
            return lambda: iter([self._directly("GET", path, parameters=parameters).get("items") or []])
        proxy, client = self._plain(self.kubectl)

        def items() -> Iterator[list[Json]]:
            proxy.wait()
            yield from client.items(path, parameters)

        return items

    def read(self, path: str) -> Json:
        """Return the object at a path of the API."""
        return self._request("GET", path)

    def merge(self, path: str, change: Json) -> Json:
        """Merge a change into the object at a path, and return it."""
        return self._request("PATCH", path, change, MERGE_PATCH)

    def delete(self, path: str) -> Json:
        """Delete an object. Raises NotFound, and what else the API server says."""
        return self._request("DELETE", path)

    def create(self, path: str, body: Json) -> Json:
        """Send an object to be created, and return what comes of it."""
        return self._request("POST", path, body)

    def ask_service(self, path: str, parameters: Mapping[str, str], headers: Mapping[str, str]) -> Json:
        """Return a Service's answer through the API server. Raises BadInput without kubectl."""
        if self.kubectl is None:
            raise BadInput("kubectl is not on the PATH, and the command needs it to reach the operator")
        proxy, client = self._plain(self.kubectl)
        proxy.wait()
        return client.request("GET", path, parameters=parameters, headers=headers)

    def _request(self, method: str, path: str, body: Json | None = None, content_type: str = JSON) -> Json:
        if self.kubectl is None:
            return self._directly(method, path, body=body, content_type=content_type)
        proxy, client = self._plain(self.kubectl)
        proxy.wait()
        return client.request(method, path, body, content_type=content_type)

    def namespace(self) -> str:
        """Return the namespace of the context; without a kubeconfig, that of the pod. Raises BadInput."""
        if self.kubectl:
            return self.kubectl.namespace()
        from gpuledger.kube_api.kubeconfig import namespace_of, persons_files

        kubeconfig, context = self._named
        if files := persons_files(kubeconfig):
            return namespace_of(files, context)
        return POD_NAMESPACE.read_text().strip() if POD_NAMESPACE.exists() else "default"

    def open(self) -> None:
        """Have kubectl serve: before an event loop runs, which would take a Ctrl-C and wait on."""
        if self.kubectl:
            proxy, _ = self._started(self.kubectl)
            import gpuledger.kube_api.client  # noqa: F401 - meanwhile

            proxy.wait()

    def helper(self, argv: list[str], ready: re.Pattern[str]) -> Helper:
        """Return a kubectl that starts now, and ends with this access at the latest."""
        return self._ending.start(argv, ready)

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of a coroutine in an event loop, which a signal cancels. `open` comes first."""
        return self._ending.run(work)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        """Yield a client for many requests, until the `async with` ends. `open` comes first."""
        from gpuledger.kube_api.client import KubeClient

        if self.kubectl is None:
            client = await self._connected()
        else:
            client = KubeClient.by_proxy(self._started(self.kubectl)[1])
        try:
            if self.kubectl:
                with contextlib.suppress(ApiError):  # the next caller gets the error, too
                    await client.request("GET", "/version", timeout_s=LOGIN_TIMEOUT_S)
            yield client
        finally:
            await client.close()

    async def _connected(self) -> KubeClient:
        """Return a client without kubectl."""
        from gpuledger.kube_api.client import KubeClient
        from gpuledger.kube_api.kubeconfig import persons_files

        kubeconfig, context = self._named
        return await KubeClient.connect(persons_files(kubeconfig), context)

    def _directly(self, method: str, path: str, **more: Any) -> Json:
        """Send one request without kubectl."""
        with where_asked():
            return self._requests().send(method, path, **more)

    def _requests(self) -> DirectRequests:
        if self._direct is None:
            from gpuledger.kube_api.client import DirectRequests

            with self._ending.held():
                self._direct = DirectRequests(self._connected, DIRECT_TIMEOUT_S)
        return self._direct

    def _plain(self, kubectl: Kubectl) -> tuple[Helper, PlainClient]:
        """Return the proxy, which may not serve yet, and a client that takes no time to import."""
        proxy, socket = self._started(kubectl)
        from gpuledger.kube_api.plain_client import PlainClient  # while kubectl starts

        return proxy, PlainClient(socket)

    def _started(self, kubectl: Kubectl) -> tuple[Helper, str]:
        """Return the proxy, which may not serve yet, and its socket. Raises BadInput where no cluster is named."""
        from gpuledger.kube_api.kubeconfig import persons_files

        if self._directory is None:
            persons_files(self._named[0])  # kubectl itself would try port 8080 of this machine
            self._directory = tempfile.TemporaryDirectory(prefix="gpuledger-")  # no other user may enter it
        socket = f"{self._directory.name}/proxy"
        if self._proxy is None:
            self._proxy = self.helper(kubectl.argv("proxy", f"--unix-socket={socket}"), SERVES)
        return self._proxy, socket


@contextlib.contextmanager
def cluster_access(kubeconfig: str | None, context: str | None = None) -> Iterator[ClusterAccess]:
    """Yield the way to the cluster until the `with` ends."""
    program = shutil.which("kubectl")
    with Ending() as ending:
        kubectl = Kubectl(program, kubeconfig, context) if program else None
        access = ClusterAccess(kubectl, kubeconfig, context, ending)
        try:
            yield access
        finally:
            access.close()


@contextlib.contextmanager
def where_asked() -> Iterator[None]:
    """Have an API server that does not answer ask, too, whether it is the one that is meant."""
    try:
        yield
    except Unreachable as error:
        from gpuledger.kube_api.plain_client import ASK_WHERE

        raise Unreachable(f"{' '.join(str(error).split())}. {ASK_WHERE}", error.status) from error


def error_of(complaint: str) -> BadInput | ApiError:
    """Return kubectl's complaint as the matching error, in its own words."""
    text = " ".join(complaint.split()).removeprefix("error: ")
    from gpuledger.kube_api.plain_client import ASK_WHERE

    if "onnect" in text or "timeout" in text or "no such host" in text:  # "The connection ...", "Unable to connect ..."
        return Unreachable(f"{text} {ASK_WHERE}")
    return BadInput(text)
