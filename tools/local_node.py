"""A real node on this machine, beside a local control plane: kubelet, containerd and runc in a box.

    with ControlPlane.run(nodes=["node-1"]) as plane, Node.running("node-1", plane) as node:
        plane.kubectl("get", "nodes")

The box (see node_box.py) has its own processes, mounts and cgroups; its `/run`, `/var/lib` and `/var/log` begin empty
and are in memory. So the kubelet's fixed directories are the node's own, several nodes run side by side, and when the
box ends, by stop() or because this process was killed, everything in it is gone. Pods must use the images that are here
(`imagePullPolicy: Never`), and the machine's network (`hostNetwork: true`) unless the control plane was made with one
for pods (see pod_network.py).

Needs root, and what missing_requirements() looks for.

`python tools/local_node.py` runs a control plane with one node until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson
import yaml

import node_box
from build_control_plane import ensure_node_binaries
from control_plane import ControlPlane, ControlPlaneError, ManagedProcess, free_port, main
from node_config import CONTAINERD_SOCKET, NETWORKS, containerd_config, kubelet_config, network_config
from node_image import BUSYBOX_IMAGE, PAUSE, PAUSE_IMAGE, busybox_layer, static_busybox, write_image
from pod_network import node_address, pod_network_config

NETWORK_PLUGIN_DIRECTORIES = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
EXECUTIONS = 3
DEBIAN_PACKAGES = "runc busybox-static containernetworking-plugins"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEVICE_PLUGINS_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"
CONTAINER_ID = re.compile("[0-9a-f]{64}")
START_TIMEOUT_S = 60.0
SCRIPT = [sys.executable, "-I", "-S", node_box.__file__]


def missing_requirements() -> list[str]:
    """Return what this machine lacks for a node, in words; an empty list where one can run."""
    if os.geteuid() != 0:
        return ["root"]
    missing = []
    if shutil.which("runc", path=SEARCH_PATH) is None:
        missing.append("runc")
    if static_busybox() is None:
        missing.append("static busybox")
    if _network_plugins() is None:
        missing.append("CNI plugin `loopback`")
    if lacking := node_box.lacking_controllers():
        missing.append(
            f"right to divide cgroups by {', '.join(lacking)} (a container needs --privileged --cgroupns=host)"
        )
    unshare = ["unshare", "--mount", "--pid", "--cgroup", "--uts", "--fork", "--mount-proc", "true"]
    if subprocess.run(unshare, capture_output=True, check=False).returncode != 0:
        missing.append("right to open namespaces (a container needs --privileged)")
    return missing


def complaint(missing: Sequence[str]) -> str:
    """Return what to tell somebody whose machine lacks something."""
    advice = "run as root" if missing == ["root"] else f"on Debian: apt install {DEBIAN_PACKAGES}"
    return f"no real node can run here, for want of: {', '.join(missing)} ({advice})"


def _network_plugins() -> str | None:
    return next((place for place in NETWORK_PLUGIN_DIRECTORIES if os.access(f"{place}/loopback", os.X_OK)), None)


def _processes_below(cgroup: Path) -> Iterator[int]:
    for file in cgroup.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):  # it is being removed
            yield from map(int, file.read_text().split())


class BoxProcess(ManagedProcess):
    """A program that runs in a box. Signals to `pid` reach it; ended by force, it takes its process group with it."""

    @property
    def program_pid(self) -> int:
        """The id of the program itself, as this machine sees it. Raises ControlPlaneError when it has ended."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        self.wait_until(lambda: bool(children.read_text()), START_TIMEOUT_S)
        return int(children.read_text())

    def kill(self) -> int:
        """Kill the program and its process group at once, wait for the program, and return its exit status."""
        with contextlib.suppress(ControlPlaneError, OSError, ValueError, subprocess.TimeoutExpired):
            os.killpg(self.program_pid, signal.SIGKILL)
            self._process.wait(1.0)  # its parent here takes it in, and ends as it ended
        return super().kill()


class Node:
    """One node. `start()` and `stop()`, or better `with Node.running(name, plane) as node:`.

    `name` is one of those the control plane was made with. `cdi_spec_dirs` is where containerd looks for CDI specs.
    """

    def __init__(self, name: str, plane: ControlPlane, cdi_spec_dirs: Sequence[str] = ("/var/run/cdi",)) -> None:
        self.name, self.plane = name, plane
        self.directory = plane.directory / f"node-{name}"
        self.binaries = Path()
        self._cdi_spec_dirs = tuple(cdi_spec_dirs)
        self._programs: list[BoxProcess] = []
        self._box: ManagedProcess | None = None
        self._init = 0
        self.kubelet: BoxProcess | None = None
        self.containerd: BoxProcess | None = None
        self._port = 0

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, name: str, plane: ControlPlane, cdi_spec_dirs: Sequence[str] = ("/var/run/cdi",)
    ) -> Iterator[Node]:
        """Start a node and stop it in the end, however that end comes about."""
        node = cls(name, plane, cdi_spec_dirs)
        node.start()
        try:
            yield node
        finally:
            node.stop()

    def start(self) -> None:
        """Start and wait until the Node is Ready. Raises BuildError or ControlPlaneError."""
        if missing := missing_requirements():
            raise ControlPlaneError(complaint(missing))
        self.binaries = ensure_node_binaries()
        try:
            self.directory.mkdir()
            self._open_box()
            self._write_configuration()
            self.start_containerd()
            self._import_first_images()
            self.start_kubelet()
            for state in ("create", "condition=Ready"):
                self.plane.kubectl("wait", f"--for={state}", f"node/{self.name}", f"--timeout={START_TIMEOUT_S:g}s")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill everything in the box, wait until all is gone, and remove what is left. Twice does no harm."""
        if self._box is None:
            return
        if self._init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)  # the kernel does the rest, and ends it last
            deadline = time.monotonic() + START_TIMEOUT_S
            while self._box.alive and time.monotonic() < deadline:
                time.sleep(0.01)
        for program in self._programs:
            program.kill()
        self._box.kill()
        self._programs.clear()
        self._box, self._init = None, 0
        node_box.remove_abandoned_cgroups()
        shutil.rmtree(self.directory, ignore_errors=True)

    # ---- what is in the box ----

    def command(self, *argv: str) -> list[str]:
        """Return the command line that runs another one in the box, for as long as the box is open."""
        if not self._init:
            raise ControlPlaneError(f"the box of {self.name} is not open")
        return [*SCRIPT, "enter", str(self._init), *argv]

    def run(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        ready: Callable[[], bool] | None = None,
        timeout_s: float = 60.0,
    ) -> BoxProcess:
        """Start a program in the box; it ends with the box. `env` is added to this process's environment.

        Its output goes to `<plane.directory>/logs/<node>-<name>.log`. Returns once `ready()` holds. Raises
        ControlPlaneError.
        """
        log = self.plane.directory / "logs" / f"{self.name}-{name}.log"
        program = BoxProcess(f"{self.name}-{name}", self.command(*argv), log, self._environment(env))
        self._programs.append(program)
        if ready:
            program.wait_until(ready, timeout_s)
        return program

    def execute(self, *argv: str, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> str:
        """Run a command in the box and return its standard output. Raises ControlPlaneError when it fails."""
        try:
            done = subprocess.run(
                self.command(*argv),
                env={**os.environ, **self._environment(env)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ControlPlaneError(f"`{' '.join(argv)}` did not end within {timeout_s:g} s") from None
        if done.returncode != 0:
            raise ControlPlaneError(f"`{' '.join(argv)}` failed with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def path(self, inside: str | Path) -> Path:
        """Return the path by which this machine reaches a path of the box, which must be absolute.

        Links on the way are followed here: by itself, an absolute one would lead back to the machine.
        """
        root = Path(f"/proc/{self._init}/root")
        todo, done = list(Path(inside).parts[1:]), Path("/")
        while todo:
            part = todo.pop(0)
            here = done.parent if part == ".." else done / part
            if part != ".." and (root / here.relative_to("/")).is_symlink():
                target = (root / here.relative_to("/")).readlink()
                todo[:0] = target.parts[1:] if target.is_absolute() else target.parts
                done = Path("/") if target.is_absolute() else done
            else:
                done = here
        return root / done.relative_to("/")

    def pids(self) -> set[int]:
        """Return the ids of all processes in the box and its containers, as this machine sees them."""
        return set(_processes_below(node_box.box_cgroup(self._init)))

    def import_image(self, tar: Path) -> None:
        """Take in an image from a tar (see node_image.write_image). Raises ControlPlaneError."""
        self._ctr("images", "import", "--local", str(tar))

    # ---- its programs ----

    @property
    def kubelet_url(self) -> str:
        """Where the kubelet serves /healthz, /metrics and /pods, to the admin's token; the same after a restart."""
        return f"https://{self._address}:{self._port}"

    @property
    def _address(self) -> str:
        return node_address(self._number) if self.plane.pod_network else "127.0.0.1"

    @property
    def _number(self) -> int:
        return self.plane.node_numbers[self.name]

    def start_kubelet(self) -> None:
        """Start the kubelet and wait until it answers, device plugins too."""
        self.kubelet = self.run(
            "kubelet",
            [
                str(self.binaries / "kubelet"),
                f"--config={self.directory / 'kubelet.yaml'}",
                f"--kubeconfig={self.plane.kubeconfig_of_node(self.name)}",
                f"--hostname-override={self.name}",
                *([f"--node-ip={self._address}"] if self.plane.pod_network else []),
                "--v=2",
            ],
            ready=self._kubelet_answers,
        )

    def kill_kubelet(self) -> None:
        """Kill the kubelet, as a crash would; pods go on."""
        if self.kubelet:
            self.kubelet.kill()

    def restart_kubelet(self) -> None:
        """Kill the kubelet, start it again, and wait until it answers."""
        self.kill_kubelet()
        self.start_kubelet()

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        self.containerd = self.run(
            "containerd",
            [str(self.binaries / "containerd"), f"--config={self.directory / 'containerd.toml'}"],
            ready=self._containerd_answers,
        )

    def kill_containerd(self) -> None:
        """Kill containerd, as a crash would; its shims and the containers go on."""
        if self.containerd:
            self.containerd.kill()

    def restart_containerd(self) -> None:
        """Kill containerd, start it again, and wait until it answers."""
        self.kill_containerd()
        self.start_containerd()

    # ---- its pods ----

    def container_id(self, namespace: str, pod: str, container: str) -> str:
        """Return containerd's id of the container that runs or ran last. Raises ControlPlaneError: there is none."""
        status = orjson.loads(self.plane.kubectl("get", "pod", pod, "--namespace", namespace, "--output=json"))[
            "status"
        ]
        for kind in ("containerStatuses", "initContainerStatuses"):
            for entry in status.get(kind, []):
                if entry["name"] == container and entry.get("containerID"):
                    return str(entry["containerID"]).removeprefix("containerd://")
        raise ControlPlaneError(f"pod {namespace}/{pod} has not started a container {container}")

    def container_pids(self, container_id: str) -> list[int]:
        """Return the ids of a container's processes, as this machine sees them, its first one first."""
        found = node_box.box_cgroup(self._init).rglob(container_id)
        return sorted(pid for directory in found for pid in _processes_below(directory))

    def containers(self) -> dict[str, list[int]]:
        """Return the ids of all containers that run -> their processes, those of pods' sandboxes too.

        It is read from control groups, and asks no program.
        """
        found = {}
        for place, _, _ in os.walk(node_box.box_cgroup(self._init)):  # one that is removed meanwhile is left out
            directory = Path(place)
            if CONTAINER_ID.fullmatch(directory.name):
                with contextlib.suppress(OSError):
                    found[directory.name] = sorted(map(int, (directory / "cgroup.procs").read_text().split()))
        return {identity: pids for identity, pids in found.items() if pids}

    def memory_cgroup(self, container_id: str) -> Path:
        """Return the directory of the cgroup that limits a container's memory. Raises ControlPlaneError: it is gone."""
        for directory in node_box.box_cgroup(self._init, "memory").rglob(container_id):
            return directory
        raise ControlPlaneError(f"container {container_id} has no cgroup")

    def pid_in_box(self, pid: int) -> int:
        """Return the id by which the node knows a process of a container."""
        status = Path(f"/proc/{pid}/status").read_text()
        (ids,) = re.findall(r"^NSpid:(.*)", status, re.MULTILINE)
        return int(ids.split()[1])  # of the machine, of the box, of the container

    def container_environment(self, namespace: str, pod: str, container: str) -> dict[str, str]:
        """Return the environment that a running container was started with."""
        pid = self.container_pids(self.container_id(namespace, pod, container))[0]
        entries = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
        return dict(entry.decode(errors="replace").split("=", 1) for entry in entries)

    def container_log(self, namespace: str, pod: str, container: str) -> str:
        """Return what a container has printed, all its runs, oldest first."""
        directories = self.path("/var/log/pods").glob(f"{namespace}_{pod}_*/{container}")
        files = sorted((f for d in directories for f in d.glob("*.log")), key=lambda file: int(file.stem))
        line = re.compile(r"^\S+ (?:stdout|stderr) [FP] ", re.MULTILINE)  # Kubernetes' CRI log format
        return "".join(line.sub("", file.read_text()) for file in files)

    def container_execute(self, namespace: str, pod: str, container: str, *argv: str) -> str:
        """Run a command in a running container and return its standard output. Raises ControlPlaneError.

        On a busy machine, ctr may lose what a command prints that ends at once. One that has printed nothing is
        therefore run again, so it should do no harm twice.
        """
        identity = self.container_id(namespace, pod, container)
        for _ in range(EXECUTIONS):
            printed = self._ctr("tasks", "exec", "--exec-id", f"exec-{time.monotonic_ns()}", identity, *argv)
            if printed:
                return printed
        return ""

    # ---- how ----

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {"PATH": f"{self.binaries}:{os.environ.get('PATH', '')}:{SEARCH_PATH}", **(env or {})}

    def _open_box(self) -> None:
        if any(self.directory.is_relative_to(private) for private in node_box.PRIVATE):
            raise ControlPlaneError(f"{self.directory} can't be seen in a box. Set TMPDIR to another directory.")
        node_box.remove_abandoned_cgroups()
        file = self.directory / "init"
        unique = self.directory.parent.name.removeprefix("plane-")
        log = self.plane.directory / "logs" / f"{self.name}-box.log"
        self._box = ManagedProcess(
            f"{self.name}-box", [*SCRIPT, "open", self.name, f"{unique}-{self.name}", str(file)], log
        )
        self._box.wait_until(file.exists, START_TIMEOUT_S)
        self._init = int(file.read_text())

    def _write_configuration(self) -> None:
        self._port = free_port()
        (self.directory / "containerd.toml").write_text(containerd_config(self._cdi_spec_dirs, str(_network_plugins())))
        kubelet = kubelet_config(self._port, self._address, alone=self.plane.pod_network)
        (self.directory / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))
        for directory in (NETWORKS, *self._cdi_spec_dirs):
            self.path(directory).mkdir(parents=True, exist_ok=True)
        network = pod_network_config(self._number) if self.plane.pod_network else network_config()
        self.path(f"{NETWORKS}/10-network.conflist").write_text(network)

    def _import_first_images(self) -> None:
        busybox = static_busybox()
        assert busybox is not None
        layer = busybox_layer(busybox)
        for name, command in ((BUSYBOX_IMAGE, ["/bin/sh"]), (PAUSE_IMAGE, ["/bin/sh", "-c", PAUSE])):
            tar = self.directory / "image.tar"
            write_image(tar, name, [layer], command)
            self.import_image(tar)
            tar.unlink()

    def _kubelet_answers(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as plugin:
            plugin.connect(str(self.path(DEVICE_PLUGINS_SOCKET)))
            return self.plane.status_of(f"{self.kubelet_url}/healthz") == 200
        return False

    def _containerd_answers(self) -> bool:
        with contextlib.suppress(ControlPlaneError):
            self._ctr("version")
            return True
        return False

    def _ctr(self, *arguments: str) -> str:
        return self.execute("ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", *arguments)


def _run_until_interrupted() -> None:
    with ControlPlane.run(nodes=["node-1"]) as plane, Node.running("node-1", plane) as node:
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        print(f"# enter the node: {' '.join(node.command('bash'))}", file=sys.stderr)
        print(f"# logs: {plane.directory / 'logs'}; Ctrl-C stops everything", file=sys.stderr, flush=True)
        while True:
            time.sleep(1)
            plane.ensure_alive()


if __name__ == "__main__":
    sys.exit(main(_run_until_interrupted))
