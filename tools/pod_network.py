"""A network for pods on this machine: all of a cluster in a network namespace of its own.

    with own_network(nodes=2), ControlPlane.run(nodes=["node-1", "node-2"], pod_network=True) as plane: ...

The API server, the kubelets and whoever asks them live in one namespace, as if all nodes were one host; each pod has a
namespace and an address of its own, by the CNI plugins `bridge` and `host-local`. The namespace begins empty and ends
with the last process in it: the machine's own interfaces, routes and firewall are never touched. There is no
kube-proxy and no DNS. Of all Services, pods reach only the API server's, whose address is one of this host's.

Needs root and iproute2. Formats: network_namespaces(7), github.com/containernetworking/cni, SPEC.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

SERVICES = "10.96.0"
"""The first three bytes of Services' addresses."""

PLUGINS = ("bridge", "host-local")
CLONE_NEWNET = 0x40000000
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
LIBC = ctypes.CDLL(None, use_errno=True)


def node_address(number: int) -> str:
    """Return the address of a node; they are numbered from 1."""
    return f"10.200.0.{number}"


def pod_network_config(number: int) -> str:
    """Return the CNI network of a node's pods: a bridge of its own, with 254 addresses."""
    addresses = {"type": "host-local", "subnet": f"10.244.{number}.0/24", "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": f"pods-{number}", "isGateway": True, "ipam": addresses}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})


def missing_requirements() -> list[str]:
    """Return what this machine lacks for such a network besides root, in words."""
    if shutil.which("ip") is None:
        return ["ip (on Debian: apt install iproute2)"]
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        return ["right to open network namespaces (a container needs --privileged)"]
    return []


@contextlib.contextmanager
def own_network(nodes: int) -> Iterator[None]:
    """Move this thread, and what it starts from now on, into a new network with the addresses of these nodes.

    In the end the thread is back where it was; what still runs in the network stays there. Raises OSError.
    """
    with open("/proc/thread-self/ns/net") as before:
        _call("unshare", CLONE_NEWNET)
        try:
            _ip("link", "set", "lo", "up")
            for address in (f"{SERVICES}.1", *map(node_address, range(1, nodes + 1))):
                _ip("address", "add", f"{address}/32", "dev", "lo")
            FORWARDING.write_text("1")  # of this namespace: between one node's pods and another's
            yield
        finally:
            _call("setns", before.fileno(), CLONE_NEWNET)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


def _call(name: str, *arguments: int) -> None:
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")
