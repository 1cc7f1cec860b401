"""One cluster of kind for all tests of this directory: four nodes with gpuledger, as `make kind-demo` leaves it.

They run by `make test-kind`, not by `make test`: a Docker daemon changes the machine's network. Where no Docker of our
own can run, they are skipped, with the reason.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_steps import BuildError
from kind.cluster import WORKERS, KindCluster
from kind_lab import DockerUnavailableError, a_docker, ensure_images, missing_requirements

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.kind)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def lab() -> Iterator[KindCluster]:
    """Yield what runs programs with a Docker of our own, in which there is no cluster yet."""
    if missing := missing_requirements():
        pytest.skip(f"clusters of kind: {', '.join(missing)}")
    before, running = machine(), programs()
    try:
        with a_docker() as docker:
            yield KindCluster(docker, ensure_images(docker))
    except DockerUnavailableError as error:
        pytest.skip(str(error))
    except BuildError as error:
        pytest.fail(str(error), pytrace=False)
    after = machine()
    assert not programs() - running, "programs of it are left on the machine"
    assert after == before, "something of it is left on the machine"


def programs() -> set[str]:
    """Return what runs of the programs of clusters, with their process ids: other tests may end theirs meanwhile."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,comm="], capture_output=True, text=True, check=True).stdout
    return {line for line in listed.splitlines() if line.split()[1] in ("dockerd", "containerd", "kubelet", "etcd")}


def machine() -> dict[str, str]:
    """Return what Docker and kubelets change on a machine."""
    asked = {
        "links": "ls /sys/class/net",
        "mounts": "cut -d ' ' -f 2 /proc/mounts",
        "rules": "iptables-save | grep '^-A'",
        "policies": "iptables-save | grep -o '^:[A-Z]* [A-Z]*' | sort -u",
        "kernel": "cat /proc/sys/vm/overcommit_memory /proc/sys/kernel/panic /proc/sys/kernel/panic_on_oops",
        "forwarding": "cat /proc/sys/net/ipv4/ip_forward",
    }
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def output(command: str) -> str:
        return subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, env=environment, check=False
        ).stdout

    return {what: output(command) for what, command in asked.items()}


@pytest.fixture(scope="session")
def shown(lab: KindCluster) -> KindCluster:
    """Return the cluster that the demo has made and left."""
    lab.demo(KEEP="1")
    return lab


@pytest.fixture
def cluster(shown: KindCluster) -> Iterator[KindCluster]:
    """Yield it; let each test leave no pod of its own, no drained node, and a ledger that agrees with the cluster."""
    yield shown
    for name in WORKERS:
        shown.kubectl("uncordon", name)
    shown.clear("app")
    shown.audit()
