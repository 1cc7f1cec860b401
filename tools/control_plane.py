"""Run a real Kubernetes control plane on this machine: etcd, kube-apiserver, kube-controller-manager.

    with ControlPlane.run() as plane:
        plane.kubectl("get", "namespaces")

There is no kubelet, unless somebody starts a `local_node.Node`: a Node is whatever object somebody creates, a bound
pod stays as it is. RBAC is on, accounts have tokens, and every request is in the audit log. Everything listens on the
loopback interface and lives in one temporary directory.

Nothing stays behind. Every program is killed by the kernel as soon as the thread that called start() ends,
whatever ended it (see child_process.py); so start from a thread that lives as long as the control plane should. After a
SIGKILL, the temporary directory stays until the next start removes it.

`python tools/control_plane.py` runs one until Ctrl-C, with every usual controller.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import yaml

from build_control_plane import ensure_binaries
from build_steps import BuildError
from child_process import dying_with_parent
from pod_network import SERVICES

POLL_INTERVAL_S = 0.05
REQUEST_TIMEOUT_S = 2.0
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
COMPONENT_TIMEOUT_S = 120.0
PORT_ATTEMPTS = 5
PORTS = range(20_000, 32_000)  # below what Linux gives to outgoing connections
_KEPT_PORTS: list[socket.socket] = []
LOG_TAIL_LINES = 20
AUDIT_LOG_SIZE_MB = 100_000  # never rotate: a test that counts needs every line
WRITE_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "serviceaccount-controller",
    "statefulset-controller",
)
CONTROLLERS_OF_REAL_NODES = (
    "cronjob-controller",
    "daemonset-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "taint-eviction-controller",
)
EVERY_CONTROLLER = ("*", "-node-lifecycle-controller")
"""All that run by default, but the one that takes nodes without heartbeats for dead: simulated nodes have none."""
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlaneError(Exception):
    """A program of the control plane failed; the text says which, why, and where its log is."""


@dataclass(frozen=True)
class AuditEvent:
    """One answered request. Texts that don't apply are empty: `resource` is for a health check."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    timestamp: datetime
    agent: str = ""
    """The program, as it names itself: two of them can have one account."""


class ManagedProcess:
    """A running program with its log file. It leads a process group of its own."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self.url: str | None = None
        self.log_begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                dying_with_parent(argv, signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                start_new_session=True,  # a Ctrl-C on the terminal is for the parent, which then stops us in order
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of the process group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, minus the signal's number where one ended the program, None while it runs.

        Asking does not reap: until terminate() or kill(), the id can't be given to another process group.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    @property
    def alive(self) -> bool:
        """Whether the program still runs."""
        return self.returncode is None

    @contextlib.contextmanager
    def halted(self) -> Iterator[None]:
        """Let the program do nothing until the `with` ends."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def ensure_alive(self) -> None:
        """Raise ControlPlaneError when it has ended by itself."""
        if not self.alive:
            raise ControlPlaneError(self._complaint(f"has ended with status {self.returncode}"))

    def terminate(self, grace_s: float = 10.0) -> int:
        """Ask the program to end, kill what is left of its group after `grace_s`, and return the exit status."""
        if self.alive:
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.kill()

    def kill(self) -> int:
        """Kill the program and its process group at once, wait for the program, and return its exit status."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def log_text(self) -> str:
        """Return what this run of the program has logged."""
        with self.log.open("rb") as file:
            file.seek(self.log_begin)
            return file.read().decode(errors="replace")

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `ready` says so. Raises ControlPlaneError when the program ends first, or time runs out."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.alive:
                raise ControlPlaneError(
                    self._complaint(f"ended with status {self.returncode} instead of getting ready")
                )
            if time.monotonic() > deadline:
                raise ControlPlaneError(self._complaint(f"was not ready after {timeout_s:g} s"))
            time.sleep(POLL_INTERVAL_S)

    def _complaint(self, problem: str) -> str:
        tail = self.log_text().splitlines()[-LOG_TAIL_LINES:] or ["(it logged nothing)"]
        return "\n".join([f"{self.name} {problem}. The end of {self.log}:", *(f"    {line}" for line in tail)])


class ControlPlane:
    """One control plane. `start()` and `stop()`, or better `with ControlPlane.run() as plane:`."""

    directory: Path
    kubeconfig: Path
    server: str
    etcd_url: str

    def __init__(
        self,
        durable: bool = False,
        json_storage: bool = False,
        nodes: Sequence[str] = (),
        pod_network: bool = False,
        every_controller: bool = False,
        feature_gates: Sequence[str] = (),
        runtime_config: Sequence[str] = (),
    ) -> None:
        """Make one that is not started.

        `durable` has etcd write to the disk before it answers, as it would in production; `json_storage` has the API
        server store JSON, which is also what others can read in etcd. `nodes` names nodes with a real kubelet (see
        local_node.py). With them, pods get service accounts and reach the API server under the usual variables, as
        long as they use the node's network; DaemonSets are followed, and nodes that fall silent become not ready. With
        `pod_network`, pods have networks of their own; this thread must be in one of pod_network.own_network().

        With `every_controller`, kube-controller-manager runs what it runs in any cluster, as far as simulated nodes
        allow. Without, it runs what most tests need. `feature_gates` and `runtime_config` turn on what
        the API server has off by default: `NAME=true`.
        """
        self._durable, self._json_storage = durable, json_storage
        self._gates = [f"--feature-gates={','.join(feature_gates)}"] if feature_gates else []
        self._runtime_config = [f"--runtime-config={','.join(runtime_config)}"] if runtime_config else []
        controllers = EVERY_CONTROLLER if every_controller else CONTROLLERS
        self._controllers = (*controllers, *(CONTROLLERS_OF_REAL_NODES if nodes else ()))
        self._node_tokens = {name: secrets.token_hex(16) for name in nodes}
        # The first address of the range of services is where pods look for the API server. Any address that begins
        # with 127 is on the loopback interface, so there it can listen itself, and needs no kube-proxy.
        self._network = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}" if nodes else "10.0.0"
        if pod_network:  # that address begins with 127 in each pod's own network, too
            self._network = SERVICES
        self.pod_network = pod_network
        self.node_numbers = {name: number for number, name in enumerate(nodes, 1)}
        self._address = f"{self._network}.1" if nodes else "127.0.0.1"
        self._programs: list[ManagedProcess] = []
        self._components: list[ManagedProcess] = []
        self._directory_lock: int | None = None
        self._token = secrets.token_hex(16)
        self._controller_manager_token = secrets.token_hex(16)

    @classmethod
    @contextlib.contextmanager
    def run(
        cls,
        durable: bool = False,
        nodes: Sequence[str] = (),
        pod_network: bool = False,
        every_controller: bool = False,
        feature_gates: Sequence[str] = (),
        runtime_config: Sequence[str] = (),
        json_storage: bool = False,
    ) -> Iterator[ControlPlane]:
        """Start a control plane and stop it in the end, however that end comes about."""
        plane = cls(
            durable,
            json_storage,
            nodes=nodes,
            pod_network=pod_network,
            every_controller=every_controller,
            feature_gates=feature_gates,
            runtime_config=runtime_config,
        )
        plane.start()
        try:
            yield plane
        finally:
            plane.stop()

    def start(self) -> None:
        """Start and wait until everything is ready, about 5 s. Raises BuildError or ControlPlaneError."""
        self._binaries = ensure_binaries()
        try:
            self.directory, self._directory_lock = _create_directory()
            self.kubeconfig = self.directory / "admin.kubeconfig"
            (self.directory / "logs").mkdir()
            self._write_configuration()
            self._start_etcd()
            self._api_server = self._start_listening(
                "kube-apiserver", self._api_server_argv, self._api_server_ready, self._address, self._api_server_port
            )
            self._components.append(self._api_server)
            self.server = str(self._api_server.url)
            self._write_kubeconfig(self.kubeconfig, self._token)
            self._start_controller_manager()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop every program, the ones from start_program() gently, and remove the directory. Twice does no harm."""
        for program in self._programs:
            if program.alive:
                os.kill(program.pid, signal.SIGTERM)
        for program in reversed(self._programs):
            program.terminate()
        self._programs.clear()
        for component in reversed(self._components):
            component.kill()  # nobody will read its data again
        self._components.clear()
        if self._directory_lock is not None:
            self._kill_unknown()
            shutil.rmtree(self.directory, ignore_errors=True)
            os.close(self._directory_lock)
            self._directory_lock = None

    def kill_programs(self) -> None:
        """Kill what start_program() and start_scheduler() have started, as a crash would."""
        for program in reversed(self._programs):
            program.kill()
        self._programs.clear()

    def _kill_unknown(self) -> None:
        """Kill the program that was just being started when a signal came: it would write into the directory again."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                ours = any(str(self._binaries / name) in words for name in COMPONENTS)
                if ours and int(status[1]) == os.getpid() and str(self.directory) in " ".join(words):
                    os.kill(int(entry.name), signal.SIGKILL)
                    os.waitpid(int(entry.name), 0)

    @contextlib.contextmanager
    def halted(self, name: str) -> Iterator[None]:
        """Let a component do nothing until the `with` ends."""
        with next(each for each in self._components if each.name == name).halted():
            yield

    def ensure_alive(self) -> None:
        """Raise ControlPlaneError when a component has ended by itself."""
        for component in self._components:
            component.ensure_alive()

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        kubeconfig: Path | None = None,
        check: bool = True,
        timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run kubectl, as admin unless another kubeconfig is given, and return its standard output.

        It finds the plugin of the virtual environment that this runs in.

        Raises ControlPlaneError with its error output when it fails and `check` is on, or when time runs out.
        """
        variables = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "KUBECONFIG": str(kubeconfig or self.kubeconfig),
            "KUBECACHEDIR": str(self.directory / "kubectl-cache"),
            "KUBERC": "off",  # a user's own kubectl preferences would change what the tests see
        }
        command = f"kubectl {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [str(self._binaries / "kubectl"), *arguments],
                input=stdin if stdin is not None else "",
                env=variables | dict(environment or {}),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ControlPlaneError(f"`{command}` did not end within {timeout_s:g} s") from None
        if check and done.returncode != 0:
            raise ControlPlaneError(f"`{command}` failed with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def kubeconfig_of_service_account(self, namespace: str, name: str, node: str | None = None) -> Path:
        """Return a kubeconfig with a fresh token of an existing service account, valid for 24 hours.

        With `node`, the name of an existing Node, the token says that its bearer runs there, as a pod's would.
        """
        bound = ["--bound-object-kind=Node", f"--bound-object-name={node}"] if node else []
        token = self.kubectl("create", "token", name, "--namespace", namespace, "--duration", "24h", *bound).strip()
        path = self.directory / ".".join([namespace, name, *([node] if node else []), "kubeconfig"])
        self._write_kubeconfig(path, token)
        return path

    def kubeconfig_of_node(self, name: str) -> Path:
        """Return a kubeconfig for the kubelet of one of the nodes that were named at first."""
        path = self.directory / f"{name}.kubeconfig"
        self._write_kubeconfig(path, self._node_tokens[name])
        return path

    def status_of(self, url: str) -> int | None:
        """Return the status of a GET as admin on this machine, whatever the certificate, None where nobody answers."""
        return _http_status(url, self._token)

    def wait_established(self, crd: str, timeout_s: float = 30.0) -> None:
        """Wait until the API server serves a CRD. Raises ControlPlaneError.

        kubectl fails at once on one that has no conditions yet.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.kubectl("wait", "--for=condition=Established", f"crd/{crd}", f"--timeout={timeout_s:g}s")
                return
            except ControlPlaneError as error:
                if "accessor error" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def metrics_of(self, url: str) -> dict[str, float]:
        """Return what a program's /metrics says to an admin: sample name with its labels -> value."""
        request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {self._token}"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=_trust_all()) as answer:  # noqa: S310
            return samples(answer.read().decode())

    def start_program(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        ready: Callable[[], bool] | None = None,
        timeout_s: float = 60.0,
    ) -> ManagedProcess:
        """Start a program that ends with the control plane; `env` is added to this process's environment.

        Its output goes to `<directory>/logs/<name>.log`. Returns once `ready()` holds. Raises ControlPlaneError.
        """
        program = ManagedProcess(name, argv, self.directory / "logs" / f"{name}.log", env)
        self._programs.append(program)
        if ready:
            program.wait_until(ready, timeout_s)
        return program

    def start_default_scheduler(self) -> ManagedProcess:
        """Start a scheduler for pods that name none, as an ordinary cluster has one."""
        kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        config = self.directory / "default-scheduler-config.yaml"
        config.write_text(yaml.safe_dump({**kind, "leaderElection": {"leaderElect": False}}))
        return self.start_scheduler(config, self.kubeconfig, name="default-scheduler")

    def start_scheduler(
        self,
        config_file: Path,
        kubeconfig: Path,
        name: str = "kube-scheduler",
        flags: Sequence[str] = (),
        host: str | None = None,
    ) -> ManagedProcess:
        """Start a kube-scheduler with a configuration file, as the account of `kubeconfig`, and wait for /livez.

        The `clientConnection.kubeconfig` of the file is replaced, in a copy. `.url` of the result serves /metrics
        (with the admin's token). With `host`, it takes that for its host's name. Raises ControlPlaneError.
        """
        config: dict[str, Any] = yaml.safe_load(config_file.read_text())
        config["clientConnection"] = {**config.get("clientConnection", {}), "kubeconfig": str(kubeconfig)}
        adjusted = self.directory / f"{name}.yaml"
        adjusted.write_text(yaml.safe_dump(config))

        def argv(port: int) -> list[str]:
            return [
                *(on_host(host) if host else ()),
                str(self._binaries / "kube-scheduler"),
                f"--config={adjusted}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--authentication-kubeconfig={self.kubeconfig}",
                f"--authorization-kubeconfig={self.kubeconfig}",
                *flags,
            ]

        scheduler = self._start_listening(
            name, argv, lambda port: _http_status(f"https://127.0.0.1:{port}/livez") == 200
        )
        self._programs.append(scheduler)
        return scheduler

    def audit_offset(self) -> int:
        """Return a position in the audit log; events after it are of requests that are answered from now on."""
        return self._audit_log.stat().st_size

    def audit_events(self, since_offset: int = 0) -> list[AuditEvent]:
        """Return all answered requests, oldest first. The API server logs a request just after answering it."""
        return self.read_audit_log(since_offset)[0]

    def read_audit_log(self, since_offset: int) -> tuple[list[AuditEvent], int]:
        """Return the same, and the position from which to read on."""
        with self._audit_log.open("rb") as file:
            file.seek(since_offset)
            content = file.read()
        complete_lines = content.split(b"\n")[:-1]
        records = (orjson.loads(line) for line in complete_lines)
        events = [_audit_event(record) for record in records if record["stage"] == "ResponseComplete"]
        return events, since_offset + content.rfind(b"\n") + 1

    def api_writes(self, since_offset: int = 0) -> list[AuditEvent]:
        """Return the answered requests that wanted to write, refused ones too (their `code` tells)."""
        return [event for event in self.audit_events(since_offset) if event.verb in WRITE_VERBS]

    def stop_api_server(self) -> None:
        """Kill the API server, as a crash would; etcd keeps its data."""
        self._components.remove(self._api_server)
        self._api_server.kill()

    def start_api_server(self) -> None:
        """Start the API server again on its old address, with the old keys, and wait until it is ready."""
        port = int(self.server.rsplit(":", 1)[1])
        self._api_server = self._spawn("kube-apiserver", self._api_server_argv(port))
        self._components.append(self._api_server)
        self._api_server.url = self.server
        self._api_server.wait_until(lambda: self._api_server_ready(port), COMPONENT_TIMEOUT_S)

    def restart_api_server(self) -> None:
        """Kill the API server and start it again, about 3 s."""
        self.stop_api_server()
        self.start_api_server()

    def stop_etcd(self) -> None:
        """Kill etcd, as a crash would. Its data stays."""
        self._components.remove(self._etcd)
        self._etcd.kill()

    def start_etcd(self) -> None:
        """Start etcd again on its old addresses with its old data, and wait until it answers."""
        port = int(self.etcd_url.rsplit(":", 1)[1])
        self._etcd = self._spawn("etcd", self._etcd_argv(port))
        self._components.append(self._etcd)
        self._etcd.url = self.etcd_url
        self._etcd.wait_until(lambda: _etcd_is_healthy(port), COMPONENT_TIMEOUT_S)

    def restart_etcd(self) -> None:
        """Kill etcd and start it again."""
        self.stop_etcd()
        self.start_etcd()

    # ---- the components ----

    @property
    def api_server(self) -> ManagedProcess:
        """The API server that runs, or ran last."""
        return self._api_server

    @property
    def _audit_log(self) -> Path:
        return self.directory / "audit.log"

    @property
    def serving_files(self) -> tuple[Path, Path]:
        """The API server's own certificate for 127.0.0.1, with the one that vouches for it, and the key."""
        return self._serving_certificate, self._serving_certificate.with_suffix(".key")

    @property
    def _serving_certificate(self) -> Path:
        return self.directory / "certificates" / "apiserver.crt"

    def _write_configuration(self) -> None:
        (self.directory / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        (self.directory / "tokens.csv").write_text(
            f'{self._token},admin,admin,"system:masters"\n'
            f"{self._controller_manager_token},system:kube-controller-manager,kube-controller-manager,system:masters\n"
            + "".join(f"{token},system:node:{name},{name},system:nodes\n" for name, token in self._node_tokens.items())
        )

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "local",
                    "cluster": {"server": self.server, "certificate-authority": str(self._serving_certificate)},
                }
            ],
            "users": [{"name": "local", "user": {"token": token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
            "current-context": "local",
        }
        path.write_text(yaml.safe_dump(content))

    def _spawn(self, name: str, argv: Sequence[str]) -> ManagedProcess:
        return ManagedProcess(name, argv, self.directory / "logs" / f"{name}.log")

    def _start_listening(
        self,
        name: str,
        argv: Callable[[int], list[str]],
        ready: Callable[[int], bool],
        address: str = "127.0.0.1",
        choose_port: Callable[[], int] | None = None,
    ) -> ManagedProcess:
        """Start a program on a free port. Another program can take the port first; then try the next one."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            port = (choose_port or free_port)()
            process = self._spawn(name, argv(port))
            process.url = f"https://{address}:{port}"
            try:
                process.wait_until(lambda port=port: ready(port), COMPONENT_TIMEOUT_S)  # type: ignore[misc]
            except ControlPlaneError:
                process.kill()
                if attempt == PORT_ATTEMPTS or "address already in use" not in process.log_text():
                    raise
            except BaseException:
                process.kill()
                raise
            else:
                return process
        raise AssertionError

    def _start_etcd(self) -> None:
        self._peer_url = f"http://127.0.0.1:{free_port()}"
        self._etcd = self._start_listening("etcd", self._etcd_argv, _etcd_is_healthy)
        self._etcd.url = self.etcd_url = str(self._etcd.url).replace("https", "http")
        self._components.append(self._etcd)

    def _etcd_argv(self, port: int) -> list[str]:
        return [
            str(self._binaries / "etcd"),
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{port}",
            f"--advertise-client-urls=http://127.0.0.1:{port}",
            f"--listen-peer-urls={self._peer_url}",
            f"--initial-advertise-peer-urls={self._peer_url}",
            f"--initial-cluster=default={self._peer_url}",
            *([] if self._durable else ["--unsafe-no-fsync"]),
            "--log-level=warn",
        ]

    def _api_server_port(self) -> int:
        return 443 if self._node_tokens else free_port()  # the port of the service `kubernetes` can't be chosen

    def _api_server_argv(self, port: int) -> list[str]:
        # The API server makes its own serving certificate; the key of that signs the accounts' tokens too.
        key = self.directory / "certificates" / "apiserver.key"
        return [
            str(self._binaries / "kube-apiserver"),
            f"--etcd-servers={self.etcd_url}",
            f"--bind-address={self._address}",
            f"--advertise-address={self._address}",
            f"--secure-port={port}",
            f"--cert-dir={key.parent}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--service-cluster-ip-range={self._network}.0/24",
            "--endpoint-reconciler-type=none",  # a loopback address is no valid endpoint of the `kubernetes` service
            *(
                ["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]
                if self._node_tokens
                else [
                    "--authorization-mode=RBAC",
                    "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
                ]
            ),
            *(["--kubelet-preferred-address-types=InternalIP"] if self.pod_network else []),  # names have no DNS
            "--allow-privileged=true",
            f"--audit-policy-file={self.directory / 'audit-policy.yaml'}",
            f"--audit-log-path={self._audit_log}",
            f"--audit-log-maxsize={AUDIT_LOG_SIZE_MB}",
            *(["--storage-media-type=application/json"] if self._json_storage else []),
            *self._gates,
            *self._runtime_config,
        ]

    def _api_server_ready(self, port: int) -> bool:
        if not self._serving_certificate.exists():
            return False
        return self._get(f"https://{self._address}:{port}", "/readyz") == 200

    def _start_controller_manager(self) -> None:
        kubeconfig = self.directory / "kube-controller-manager.kubeconfig"
        self._write_kubeconfig(kubeconfig, self._controller_manager_token)
        manager = self._spawn(
            "kube-controller-manager",
            [
                str(self._binaries / "kube-controller-manager"),
                f"--kubeconfig={kubeconfig}",
                f"--controllers={','.join(self._controllers)}",
                f"--root-ca-file={self._serving_certificate}",
                "--leader-elect=false",
                "--secure-port=0",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
            ],
        )
        self._components.append(manager)
        account = "/api/v1/namespaces/default/serviceaccounts/default"  # made by one of its controllers
        manager.wait_until(lambda: self._get(self.server, account) == 200, COMPONENT_TIMEOUT_S)

    def _get(self, server: str, path: str) -> int | None:
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            trust.load_verify_locations(self._serving_certificate)
        except ssl.SSLError:
            return None  # it is being written
        return _http_status(server + path, self._token, trust)


def on_host(name: str) -> list[str]:
    """Return what to put before a command, so that it takes a name for its host's. Needs util-linux and namespaces."""
    unshare = ["unshare", "--uts"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--uts"]
    rename = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
    return [*unshare, sys.executable, "-c", rename, name]


def _audit_event(record: dict[str, Any]) -> AuditEvent:
    target = record.get("objectRef", {})
    return AuditEvent(
        user=record["user"].get("username", ""),
        verb=record["verb"],
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=record.get("responseStatus", {}).get("code", 0),
        timestamp=datetime.fromisoformat(record["stageTimestamp"]),
        agent=record.get("userAgent", ""),
    )


def _etcd_is_healthy(port: int) -> bool:
    return _http_status(f"http://127.0.0.1:{port}/health") == 200


def _http_status(url: str, token: str | None = None, trust: ssl.SSLContext | None = None) -> int | None:
    """Return the status of a GET on this machine, None where nobody answers. Without `trust`, anybody may."""
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=REQUEST_TIMEOUT_S, context=trust or _trust_all())
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=REQUEST_TIMEOUT_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", parts.path, headers={"Authorization": f"Bearer {token}"} if token else {})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None


def samples(text: str) -> dict[str, float]:
    """Read metrics in Prometheus' text format: sample name with its labels -> value."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def _trust_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def free_port() -> int:
    """Return a loopback port that nobody listens on, no other caller is given, and no outgoing connection will have.

    This process keeps it until it ends, so that a program that dies finds its port free when it is started again. A
    bound socket that doesn't listen keeps out only programs that don't set SO_REUSEADDR: this function, not servers.

    A client that keeps trying a dead server's port in the system's range for outgoing connections ends up connected
    to itself, and the server can't come back.
    """
    while True:
        port = secrets.choice(PORTS)
        kept = socket.socket()
        try:
            kept.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
        else:
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _KEPT_PORTS.append(kept)
            return port


def _create_directory() -> tuple[Path, int]:
    """Return a new directory and the open file whose lock says that it is in use.

    Directories without a holder are what a killed process left: they are removed. The kernel drops a lock with its
    holder, so that, unlike a process id in a name, it can't be mistaken for a later process.
    """
    base = Path(tempfile.gettempdir()) / f"gpuledger-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    with _locked_directory(base, fcntl.LOCK_EX) as base_lock:
        if os.fstat(base_lock).st_uid != os.getuid():
            raise ControlPlaneError(f"{base} belongs to somebody else. Set TMPDIR to a directory of your own.")
        for entry in base.iterdir():
            with contextlib.suppress(OSError), _locked_directory(entry, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(entry, ignore_errors=True)
        directory = Path(tempfile.mkdtemp(prefix=f"plane-{os.getpid()}-", dir=base))
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return directory, lock


@contextlib.contextmanager
def _locked_directory(path: Path, operation: int) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, operation)
        yield handle
    finally:
        os.close(handle)


def _run_until_interrupted() -> None:
    with ControlPlane.run(every_controller=True) as plane:
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        print(f"# logs: {plane.directory / 'logs'}; Ctrl-C stops everything", file=sys.stderr, flush=True)
        while True:
            time.sleep(1)
            plane.ensure_alive()


def main(run_until_interrupted: Callable[[], None] = _run_until_interrupted) -> int:
    """Run a control plane until Ctrl-C or SIGTERM, and return the exit status."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        run_until_interrupted()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
    except (BuildError, ControlPlaneError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
