"""Configuration files of the programs on a node in a box: containerd's, its network's, the kubelet's.

The kubelet's choices are those that also work in a container or a virtual machine with cgroups of version 1 and without
CAP_SYS_RESOURCE. Nothing listens but on the loopback interface, and nothing is asked of the machine's firewall.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from node_image import PAUSE_IMAGE

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
NETWORKS = "/run/cni/net.d"


def containerd_config(cdi_spec_dirs: Sequence[str], network_plugins: str) -> str:
    """Return containerd's config.toml, version 3. Its own paths are left as they are: the box has its own."""
    return f"""\
version = 3
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = {json.dumps(list(cdi_spec_dirs))}
restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE, runc can't make a container more important than itself

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{network_plugins}"]
conf_dir = "{NETWORKS}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def network_config() -> str:
    """Return a CNI network that makes the node ready. Pods use the machine's network: `hostNetwork: true`."""
    return json.dumps({"cniVersion": "1.0.0", "name": "loopback-only", "plugins": [{"type": "loopback"}]})


def kubelet_config(port: int, address: str = "127.0.0.1", alone: bool = False) -> dict[str, Any]:
    """Return a KubeletConfiguration, kubelet.config.k8s.io/v1beta1.

    Where it is `alone` with the control plane, in a network of theirs, it does what it is asked: the API server, which
    has no certificate to show, may fetch logs, run commands and forward ports.
    """
    trust = {"anonymous": {"enabled": True}}, {"mode": "AlwaysAllow"}
    check = {"anonymous": {"enabled": False}, "webhook": {"enabled": True}}, {"mode": "Webhook"}
    authentication, authorization = trust if alone else check
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": port,
        "healthzPort": 0,
        "authentication": authentication,
        "authorization": authorization,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "nodeStatusUpdateFrequency": "1s",  # how soon a change of the slots shows
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "imageGCHighThresholdPercent": 100,  # never remove an image: there is no registry to get it from again
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
    }
