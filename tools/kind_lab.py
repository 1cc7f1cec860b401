"""kind on a machine that reaches no image registry: Docker of its own, and all images made here.

    python tools/kind_lab.py run COMMAND...     run a command with that Docker; then all of it is removed
    python tools/kind_lab.py build              only make the images, and what the tests run; it is kept

The command finds `docker`, `kind`, `kubectl` and `helm` on its PATH, and in KIND_IMAGE a node image of the same
Kubernetes as the other tests'. Programs are built from Go modules (see build_control_plane.py), the nodes' root is
Debian's packages. Docker's data and the programs stay in the build cache.

Where a Docker daemon runs already, nothing of it is used or changed, and this one is not started: their rules in the
machine's firewall would mix. Needs root, and what missing_requirements() looks for.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_control_plane import (
    KIND_PROGRAMS,
    ensure_binaries,
    ensure_helm,
    ensure_kind_binaries,
    ensure_kind_programs,
    ensure_node_binaries,
    kind_sources,
    kubernetes_version,
)
from build_steps import Builder, BuildError, cache_directory
from child_process import dying_with_parent
from container_image import debian_root
from node_image import PAUSE, busybox_layer, program_layer, static_busybox, write_image, write_program_image

ASSETS = Path(__file__).with_name("kind_node")
SUITE = "trixie"
"""Of Debian, for the nodes and for the Python of our image, which the Dockerfile expects to be 3.13."""

NODE_PACKAGES = (
    *("systemd", "mount", "util-linux", "kmod", "procps", "bash", "jq", "curl", "ca-certificates", "pigz", "e2fsprogs"),
    *("iptables", "nftables", "conntrack", "iproute2", "ethtool", "runc", "libseccomp2", "containernetworking-plugins"),
)
PYTHON_PACKAGES = ("python3", "python3-venv", "python3-pip", "ca-certificates")
PYTHON_IMAGE = "python:3.13-slim"
BUSYBOX_IMAGE = "docker.io/library/busybox:1.37"
NETWORK_IMAGE, POLICIES_IMAGE = "gpuledger.test/pod-network:1", "gpuledger.test/kube-network-policies:1"
NODE_IMAGE = "gpuledger.test/kind-node"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

CAP_SYS_RESOURCE = 24
SYSCTLS = ("vm.overcommit_memory", "kernel.panic", "kernel.panic_on_oops", "net.ipv4.ip_forward")
"""What Docker and kubelets set for the whole machine."""

BRIDGE = "(?:docker0|br-[0-9a-f]{12})"
"""The names of Docker's bridges."""

START_TIMEOUT_S = 60.0
BUILDER = Builder("kind")


def missing_requirements() -> list[str]:
    """Return what this machine lacks, in words; an empty list where clusters of kind can run."""
    if os.geteuid() != 0:
        return ["root"]
    programs = {"dockerd": "docker.io", "iptables": "iptables", "jq": "jq", "mmdebstrap": "mmdebstrap", "runc": "runc"}
    search_path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [
        f"{name} (on Debian: apt install {package})"
        for name, package in programs.items()
        if not shutil.which(name, path=search_path)
    ]
    if static_busybox() is None:
        missing.append("a static busybox (on Debian: apt install busybox-static)")
    if not missing and _another_runs():
        missing.append("a machine on which no other Docker runs")
    return missing


def _another_runs() -> bool:
    environment = {key: value for key, value in os.environ.items() if key != "DOCKER_HOST"}
    return subprocess.run(["docker", "version"], capture_output=True, env=environment, check=False).returncode == 0


class DockerUnavailableError(BuildError):
    """No Docker daemon can run on this machine."""


@dataclass(frozen=True)
class Docker:
    """A Docker daemon of our own."""

    directory: Path
    """Of its socket, and of what is only needed while it runs."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs find it, and the programs."""
        directories = (ensure_kind_binaries(), ensure_binaries(), ensure_helm().parent)
        return {
            **os.environ,
            "DOCKER_HOST": f"unix://{self.directory}/docker.sock",
            "DOCKER_BUILDKIT": "0",
            "DOCKER_CONFIG": str(self.directory / "config"),
            "KUBECONFIG": str(self.directory / "kubeconfig"),
            "PATH": os.pathsep.join([*map(str, directories), os.environ["PATH"], "/usr/sbin", "/sbin"]),
        }

    def run(self, *argv: str, stdin: bytes | None = None) -> str:
        """Run a command that uses it; return what it prints. Raises BuildError."""
        done = subprocess.run(argv, input=stdin, env=self.environment, capture_output=True, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr).decode(errors="replace").splitlines()[-20:]
            raise BuildError("\n".join([f"`{shlex.join(argv)[:200]}` failed:", *said]))
        return done.stdout.decode()

    def has_image(self, name: str) -> bool:
        """Return whether an image is there."""
        return bool(self.run("docker", "images", "--quiet", name))


# The daemon.


@contextlib.contextmanager
def a_docker() -> Iterator[Docker]:
    """Run a Docker daemon; at the end, remove its clusters of kind, and what it has set on the machine."""
    data = cache_directory().parent / "kind" / "docker"
    data.mkdir(parents=True, exist_ok=True)
    with (
        BUILDER.alone(data.parent),  # two daemons can't share the images
        tempfile.TemporaryDirectory(prefix="gpuledger-docker-") as temporary,
        _machine_as_it_was(),
    ):
        docker = Docker(Path(temporary))
        process = _start(docker, data)
        try:
            yield docker
        finally:
            try:
                _remove_clusters(docker)
            finally:
                process.terminate()
                process.wait(60)


def _start(docker: Docker, data: Path) -> subprocess.Popen[bytes]:
    place = docker.directory
    argv = [
        *("dockerd", "--data-root", str(data), "--exec-root", str(place / "exec"), "--pidfile", str(place / "pid")),
        *("--host", f"unix://{place}/docker.sock", "--ip6tables=false", "--containerd-namespace", "gpuledger-kind"),
        *("--containerd-plugins-namespace", "gpuledger-kind-plugins"),
    ]
    if not _may_raise_limits():
        argv += ["--add-runtime", f"limited={ASSETS / 'runc'}", "--default-runtime", "limited"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            dying_with_parent(argv, signal.SIGTERM),  # its containers end with it
            stdout=log,
            stderr=log,
            env=docker.environment,
            start_new_session=True,
        )
    end_s = time.monotonic() + START_TIMEOUT_S
    while subprocess.run(["docker", "version"], env=docker.environment, capture_output=True, check=False).returncode:
        if process.poll() is not None or time.monotonic() > end_s:
            process.kill()
            raise DockerUnavailableError(f"dockerd does not start:\n{_tail(place / 'log')}")
        time.sleep(0.2)
    return process


def _may_raise_limits() -> bool:
    """Return whether root here has CAP_SYS_RESOURCE, which Docker and kubelets give to privileged containers."""
    found = re.search(r"^CapBnd:\s+(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(found and int(found[1], 16) >> CAP_SYS_RESOURCE & 1)


def _tail(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-15:])


def _remove_clusters(docker: Docker) -> None:
    for name in docker.run("kind", "get", "clusters").split():
        docker.run("kind", "delete", "cluster", "--name", name)
    left = docker.run("docker", "ps", "--all", "--quiet").split()
    if left:
        docker.run("docker", "rm", "--force", "--volumes", *left)
    for network in docker.run("docker", "network", "ls", "--quiet", "--filter", "type=custom").split():
        docker.run("docker", "network", "rm", network)
    docker.run("docker", "volume", "prune", "--force")


@contextlib.contextmanager
def _machine_as_it_was() -> Iterator[None]:
    """Take back what Docker and kubelets set on the machine: the firewall's chains, bridges, the kernel's settings."""
    before = {name: _sysctl(name) for name in SYSCTLS}
    policy = re.search(r"^:FORWARD (\w+)", _output("iptables-save", "-t", "filter"), re.MULTILINE)
    links = _links()
    try:
        yield
    finally:
        for bridge in _links() - links:
            subprocess.run(["ip", "link", "delete", bridge], check=False)
        for table in ("filter", "nat"):
            rules = _output("iptables-save", "-t", table).splitlines(keepends=True)
            kept = "".join(line for line in rules if not re.search(rf"DOCKER|\b{BRIDGE}\b", line))
            subprocess.run(["iptables-restore", "-T", table], input=kept.encode(), check=False)
        subprocess.run(["iptables", "-P", "FORWARD", policy[1] if policy else "ACCEPT"], check=False)
        for name, value in before.items():
            Path("/proc/sys", *name.split(".")).write_text(value)


def _sysctl(name: str) -> str:
    return Path("/proc/sys", *name.split(".")).read_text()


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def _links() -> set[str]:
    return {each.name for each in Path("/sys/class/net").iterdir() if re.fullmatch(BRIDGE, each.name)}


# Images.


def ensure_images(docker: Docker) -> str:
    """Make the images that clusters need, unless they are there; return the node image's name. Raises BuildError.

    The first time takes about 6 minutes on two cores, most of it for programs and Debian's packages.
    """
    if not docker.has_image(PYTHON_IMAGE):
        _build_python(docker)
    name = f"{NODE_IMAGE}:{kubernetes_version()}-{_key()}"
    if not docker.has_image(name):
        _build_node(docker, name)
    return name


def _key() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for file in sorted(ASSETS.iterdir()):
        digest.update(file.read_bytes())
    programs = (ensure_kind_binaries(), ensure_binaries(), ensure_node_binaries())
    digest.update("\0".join([*map(str, programs), *NODE_PACKAGES]).encode())
    return digest.hexdigest()[:12]


def _build_python(docker: Docker) -> None:
    """Make what the Dockerfile's base image has, with this machine's certificates: a proxy may sign with its own."""
    root = debian_root("kind-python", SUITE, PYTHON_PACKAGES)
    docker.run("docker", "import", str(root), "gpuledger.test/python-root:1")
    with tempfile.TemporaryDirectory() as context:
        shutil.copyfile(CERTIFICATES, Path(context) / "ca.crt")
        lines = (
            "FROM gpuledger.test/python-root:1",
            "RUN ln -s /usr/bin/python3 /usr/local/bin/python",
            f"COPY ca.crt {CERTIFICATES}",
            f"ENV PIP_CERT={CERTIFICATES}",
            'CMD ["python3"]',
        )
        (Path(context) / "Dockerfile").write_text("\n".join(lines))
        docker.run("docker", "build", "--quiet", "--tag", PYTHON_IMAGE, context)


def _build_node(docker: Docker, name: str) -> None:
    BUILDER.say("making the node image, about a minute")
    root, base = "gpuledger.test/node-root:1", "gpuledger.test/node-base:1"
    docker.run("docker", "import", str(debian_root("kind-node", SUITE, NODE_PACKAGES)), root)
    with tempfile.TemporaryDirectory(prefix="gpuledger-node-") as temporary:
        place = Path(temporary)
        _node_context(place / "context")
        argv = ("--build-arg", f"ROOT={root}", "--file", str(ASSETS / "node.Dockerfile"), str(place / "context"))
        docker.run("docker", "build", "--quiet", "--tag", base, *argv)
        (place / "images").mkdir()
        _write_images(docker, root, place / "images")
        _import_into(docker, base, sorted((place / "images").iterdir()), name)
    of_version = name.rpartition("-")[0]
    for other in docker.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", NODE_IMAGE).split():
        if other != name and other.startswith(f"{of_version}-"):  # of an earlier state of all this, 1 GB each
            docker.run("docker", "rmi", "--force", other)


def _node_context(context: Path) -> None:
    """Write what the node image is built from, each file with its final mode: a later chmod would double its size."""
    shutil.copytree(kind_sources() / "images" / "base" / "files", context / "files", copy_function=shutil.copyfile)
    for directory in ("kind/bin", "usr/local/bin"):
        for program in (context / "files" / directory).iterdir():
            program.chmod(0o755)
    binaries = {program.name: ensure_kind_binaries() / program.name for program in KIND_PROGRAMS}
    for directory, names in {
        "kubernetes": ("kubelet", "kubectl", "kubeadm"),
        "runtime": ("containerd", "containerd-shim-runc-v2", "ctr", "crictl"),
    }.items():
        (context / "bin" / directory).mkdir(parents=True)
        for name in names:
            source = binaries.get(name) or next(
                each / name for each in (ensure_binaries(), ensure_node_binaries()) if (each / name).exists()
            )
            shutil.copy(source.resolve(), context / "bin" / directory / name)
    files = {
        "kind/version": kubernetes_version(),
        "kind/manifests/default-cni.yaml": (ASSETS / "default-cni.yaml").read_text(),
        "kind/manifests/default-storage.yaml": (ASSETS / "default-storage.yaml").read_text(),
        # Kubelets of 1.35 and later refuse a machine with cgroups of version 1.
        "etc/kubernetes/kubelet.conf.d/10-cgroups.conf": (
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n"
        ),
        "etc/default/kubelet": (
            "KUBELET_EXTRA_ARGS=--runtime-cgroups=/system.slice/containerd.service "
            "--config-dir=/etc/kubernetes/kubelet.conf.d\n"
        ),
    }
    if not _may_raise_limits():
        files["usr/local/sbin/runc"] = (ASSETS / "runc").read_text()
    for name, content in files.items():
        file = context / "ours" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(0o755 if name.endswith("/runc") else 0o644)
    for each in (context, *(each for each in context.rglob("*") if each.is_dir())):
        each.chmod(0o755)


def _write_images(docker: Docker, root: str, directory: Path) -> None:
    """Write the images of a cluster as tars, under the names that kubeadm, kind and the examples ask for."""
    kind, control_plane = ensure_kind_binaries(), ensure_binaries()
    listed = docker.run("kubeadm", "config", "images", "list", "--kubernetes-version", kubernetes_version()).split()
    config = (kind_sources() / "images/base/files/etc/containerd/config.toml").read_text()
    listed += re.findall(r'^\s*sandbox_image = "(\S+)"', config, re.MULTILINE)
    network = directory.parent / "network.tar"
    _write_network_root(docker, root, network)
    busybox = static_busybox()
    if busybox is None:
        raise BuildError("A static busybox is missing. On Debian: apt install busybox-static")
    for name in sorted({*listed, BUSYBOX_IMAGE, NETWORK_IMAGE, POLICIES_IMAGE}):
        short, output = (
            name.rpartition("/")[2].partition(":")[0],
            directory / f"{len(list(directory.iterdir())):02}.tar",
        )
        if short == "pause":
            write_image(output, name, [busybox_layer(busybox)], ["/bin/sh", "-c", PAUSE], user="65535:65535")
        elif name == BUSYBOX_IMAGE:
            write_image(output, name, [busybox_layer(busybox)], [], arguments=["sh"])
        elif name == NETWORK_IMAGE:
            programs = {"kubectl": control_plane / "kubectl", "network": ASSETS / "network"}
            write_image(output, name, [network, program_layer(programs)], ["network"])
        elif short == "kube-proxy":
            write_image(output, name, [network, program_layer({short: kind / short})], [short])
        elif name == POLICIES_IMAGE:
            write_image(output, name, [program_layer({short: kind / short})], [short])
        else:
            program = next(each / short for each in (control_plane, kind) if (each / short).exists())
            write_program_image(output, name, program.resolve(), user="")


def _write_network_root(docker: Docker, root: str, output: Path) -> None:
    """Write a root with iptables and all its modules, of 10 MB: a module without its library stops kube-proxy."""
    argv = ["docker", "run", "--rm", "--network", "none", root, "sh", "-c", (ASSETS / "network-root").read_text()]
    with output.open("wb") as file:
        done = subprocess.run(argv, env=docker.environment, stdout=file, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise BuildError(f"The root for the pods' network can't be made: {done.stderr.decode(errors='replace')}")


def _import_into(docker: Docker, base: str, images: Sequence[Path], name: str) -> None:
    """Let the base's containerd have images, and make the node image of the result, as kind does with its own."""
    argv = (
        "docker",
        "run",
        "--detach",
        "--entrypoint",
        "sleep",
        "--security-opt",
        "seccomp=unconfined",
        base,
        "infinity",
    )
    container = docker.run(*argv).strip()
    try:
        docker.run("docker", "exec", "--detach", container, "containerd")
        end_s = time.monotonic() + START_TIMEOUT_S
        while subprocess.run(
            ["docker", "exec", container, "ctr", "version"], env=docker.environment, capture_output=True, check=False
        ).returncode:
            if time.monotonic() > end_s:
                raise BuildError("containerd does not start in the node's base image")
            time.sleep(0.2)
        for image in images:
            command = ("ctr", "--namespace=k8s.io", "images", "import", "--no-unpack", "--digests", "-")
            docker.run("docker", "exec", "--interactive", container, *command, stdin=image.read_bytes())
        docker.run("docker", "exec", container, "sh", "-c", "kill $(pidof containerd); sleep 1; rm -rf /run/containerd")
        entry = ("--change", 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]', "--change", "CMD []")
        docker.run("docker", "commit", *entry, container, name)
    finally:
        docker.run("docker", "rm", "--force", "--volumes", container)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the images, run a command with them, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("build", help="make all that the tests need, which is kept")
    run = commands.add_parser("run", help="run a command with a Docker of its own, and remove that")
    run.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if missing := missing_requirements():
        print(f"error: kind can't run here for want of {', '.join(missing)}", file=sys.stderr)
        return 1
    try:
        ensure_kind_programs(for_tests=chosen.what == "build")
        with a_docker() as docker:
            image = ensure_images(docker)
            if chosen.what == "build":
                return 0
            environment = {**docker.environment, "KIND_IMAGE": image}
            return subprocess.run(chosen.command, env=environment, check=False).returncode
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
