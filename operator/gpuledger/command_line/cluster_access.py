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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

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
        self._listener: threading.Thread | None = None
        setpriv = shutil.which("setpriv")  # Linux' way to end it even after a SIGKILL of this program
        self._process = subprocess.Popen(
            [setpriv, "--pdeathsig", "TERM", *argv] if setpriv else argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def wait(self) -> re.Match[str]:
        """Wait until it is ready; return what has said so. Raises BadInput or ApiError, in kubectl's words."""
        with self._lock:  # several threads may wait for it, and each is told
            if self._found is None:
                try:
                    self._found = self._first()
                except GpuledgerError as error:
                    self._found = error
        if isinstance(self._found, GpuledgerError):
            raise self._found
        return self._found

    def _first(self) -> re.Match[str]:
        assert self._process.stdout  # noqa: S101 - it was asked for
        said: list[str] = []
        too_late = threading.Timer(START_TIMEOUT_S, self._process.kill)
        too_late.start()
        try:
            for line in self._process.stdout:
                if found := self._ready.search(line):
                    self._listener = threading.Thread(target=self._listen, daemon=True)
                    self._listener.start()
                    return found
                said.append(line)
        finally:
            too_late.cancel()
        self._process.stdout.close()  # `end` leaves that to whoever reads
        if not said:
            raise BadInput(f"{self._name} does not serve, and does not say why")
        raise error_of("".join(said))

    def _listen(self) -> None:
        """Read its later output until all writers have closed the pipe, so that it never blocks."""
        assert self._process.stdout  # noqa: S101 - it was asked for
        with self._process.stdout as said:
            for _ in said:
                pass

    def end(self) -> None:
        """End it, however it takes that."""
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # What it has started itself, to log in for example, can live on and hold the pipe: no one waits for that.
        if self._listener:
            self._listener.join(END_TIMEOUT_S)
        elif self._process.stdout and not self._lock.locked():
            self._process.stdout.close()


class Objects:
    """The objects of a list, read in a thread while others go on."""

    def __init__(self, items: Callable[[], Iterator[list[Json]]]) -> None:
        self._items = items
        self._read: SimpleQueue[list[Json] | Exception | None] = SimpleQueue()  # None is the end
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def is_being_read(self) -> bool:
        """Return whether there may be more to come."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Wait for the thread, whose requests have been ended: one that is at work can't outlive the interpreter."""
        self._thread.join(END_TIMEOUT_S)

    def _work(self) -> None:
        try:
            for some in self._items():
                self._read.put(some)
            self._read.put(None)
        except Exception as error:  # noqa: BLE001 - raised again where the objects are read
            self._read.put(error)

    def __iter__(self) -> Iterator[Json]:
        """Yield each object, once, as soon as it is there. Raises BadInput or a subclass of ApiError."""
        while (some := self._read.get()) is not None:
            if isinstance(some, Exception):
                raise some
            yield from some


class ClusterAccess:
    """The way to one cluster. Its kubectl starts with the first request; all of it raises BadInput and ApiError."""

    def __init__(self, kubectl: Kubectl | None, kubeconfig: str | None, context: str | None) -> None:
        """Take what the user has named; None is as kubectl has it."""
        self.kubectl = kubectl
        self._named = kubeconfig, context
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._proxy: Helper | None = None
        self._direct: DirectRequests | None = None
        self._lists: list[Objects] = []

    def close(self) -> None:
        """End what was started."""
        if self._proxy:
            self._proxy.end()
        if self._direct:
            self._direct.end()
        for objects in self._lists:
            objects.end()
        if self._directory:
            self._directory.cleanup()

    def begin(self, path: str, parameters: Mapping[str, str] | None = None) -> Objects:
        """Start to read a list."""
        objects = Objects(self._items_of(path, parameters))
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
            self._proxy = Helper(kubectl.argv("proxy", f"--unix-socket={socket}"), SERVES)
        return self._proxy, socket


@contextlib.contextmanager
def cluster_access(kubeconfig: str | None, context: str | None = None) -> Iterator[ClusterAccess]:
    """Yield the way to the cluster until the `with` ends."""
    program = shutil.which("kubectl")
    access = ClusterAccess(Kubectl(program, kubeconfig, context) if program else None, kubeconfig, context)
    with ended_by_signals():
        try:
            yield access
        finally:
            access.close()


def namespace_of(kubeconfig: str | None, context: str | None) -> str:
    """Return the namespace that is meant where none is named. Raises BadInput."""
    with cluster_access(kubeconfig, context) as cluster:
        return cluster.namespace()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this program as Ctrl-C does, so that what it has started ends, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
