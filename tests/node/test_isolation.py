"""What keeps shares apart reaches the container: variables and mounts, as the node and the pod want them.

Neither HAMi-core nor MPS is here: stand-ins lie where they would be. What these enforce is tested on a real card.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from cluster.claims import TEMPLATES, create_class, share, template
from cluster.cluster import COUNT
from fakes.shared_library import a_library
from gpuledger.agent.isolation.choice import MPS_PIPES
from gpuledger.agent.isolation.hami_core import HAMI_LOCK
from manifests.helm import the_helm
from node.gpu_node import GpuNode, gpu_container, gpu_pod, one_card
from node.test_claims import by_claim, serves_claims
from node_image import busybox_layer, static_busybox, write_image

WISH = "gpuledger.dev/isolation"
SHOW = "cat /usr/local/vgpu/libvgpu.so /etc/ld.so.preload; echo seen > /usr/local/vgpu/usage.cache; exec sleep 3600"


@pytest.fixture
def with_hami_core(gpu: GpuNode) -> Iterator[GpuNode]:
    """Yield the node with something that lies where HAMi-core does, and all pods under it."""
    home = gpu.node.path("/var/lib") / "hami-core"
    home.mkdir(exist_ok=True)
    (home / "libvgpu.so").write_text("the library\n")
    (home / "ld.so.preload").write_text("\n")
    yield from _with_settings(gpu, isolation="hami-core", hami_core_directory="/var/lib/hami-core")


def _with_settings(gpu: GpuNode, **settings: object) -> Iterator[GpuNode]:
    with gpu.agent_with(**settings):
        yield gpu


@pytest.mark.promise("isolation")
def test_hami_core_gets_its_limits_its_library_and_a_directory_of_its_own(with_hami_core: GpuNode) -> None:
    gpu = with_hami_core
    limits = {COUNT: 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30, "nvidia.com/priority": 1}
    gpu.create(gpu_pod("held", gpu_container("main", limits, SHOW)))
    alone = gpu_pod("alone", {COUNT: 1}, annotations={WISH: "none"})
    shared = gpu_pod("shared", one_card(), annotations={WISH: "none"})
    gpu.create(alone, shared)
    gpu.wait_running("held", "alone", "shared")
    gpu.check("held", "alone", "shared")
    env = gpu.node.container_environment("default", "held", "main")
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "3000m"
    assert (env["CUDA_DEVICE_SM_LIMIT"], env["CUDA_TASK_PRIORITY"]) == ("30", "1")
    assert gpu.node.container_log("default", "held", "main").startswith("the library")
    uid = gpu.cluster.pod("held")["metadata"]["uid"]
    own = gpu.node.path("/var/lib/hami-core/containers") / f"{uid}_main" / "usage.cache"
    gpu.cluster.wait(own.exists, "its counters are on the node")
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in gpu.node.container_environment("default", "alone", "main")
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" in gpu.node.container_environment("default", "shared", "main")


def has_written(gpu: GpuNode, pod: str, word: str) -> bool:
    return word in gpu.node.container_log("default", pod, "main")


def is_small(taken: Callable[[str], int], pod: str) -> bool:
    return taken(pod) < 8 << 20


@pytest.mark.promise("limits of claims")
def test_places_for_hami_core_belong_to_one_container_and_have_a_bounded_size(with_hami_core: GpuNode) -> None:
    """Whoever runs there, root or not: it can neither fill the node's disk, nor keep others from CUDA's start."""
    gpu = with_hami_core
    attack = (
        "mkdir -p /tmp/vgpulock/lock/full; for n in $(seq 100); do echo > /tmp/vgpulock/$n; done; "
        "dd if=/dev/zero of=/tmp/vgpulock/filler bs=64k count=100; "
        "dd if=/dev/zero of=/usr/local/vgpu/usage.cache bs=1M count=64 conv=notrunc; echo tried; exec sleep 3600"
    )
    nobody = {"runAsUser": 65534, "runAsGroup": 65534}
    attackers = (
        gpu_pod("root", gpu_container("main", one_card(), attack)),
        gpu_pod("nobody", gpu_container("main", one_card(), attack, securityContext=nobody)),
    )
    gpu.create(*attackers, gpu_pod("other", one_card()))
    gpu.wait_running("root", "nobody", "other")
    hami = gpu.node.path("/var/lib/hami-core")

    def taken(name: str) -> int:
        """Return how many bytes a container's counters take of the disk."""
        uid = gpu.cluster.pod(name)["metadata"]["uid"]
        return (hami / "containers" / f"{uid}_main" / "usage.cache").stat().st_blocks * 512

    for name in ("root", "nobody"):
        gpu.cluster.wait(partial(has_written, gpu, name, "tried"), "it has tried")
        gpu.cluster.wait(partial(is_small, taken, name), "its counters were cut off")
        (used,) = gpu.node.container_execute("default", name, "main", "df", "-k", HAMI_LOCK).splitlines()[1:]
        assert used.split()[1] == "64", "KiB, of its own memory"
        files = gpu.node.container_execute("default", name, "main", "ls", HAMI_LOCK).split()
        assert len(files) < 20
    assert gpu.node.container_execute("default", "other", "main", "ls", HAMI_LOCK).split() == []
    # The last one is there where an image has brought the library, as in an earlier module.
    own = {
        "containers",
        "libvgpu.so",
        "ld.so.preload",
        "versions",
    }
    assert {path.name for path in hami.iterdir()} <= own


def test_containers_that_hami_core_can_not_hold_together_do_not_start_and_events_say_what_to_do(
    with_hami_core: GpuNode,
) -> None:
    gpu = with_hami_core
    create_class(gpu.cluster)
    gpu.cluster.wait(lambda: serves_claims(gpu) == "true", "the kubelet has taken up our driver")
    gpu.cluster.request("POST", TEMPLATES, template("part", share("4000Mi")))
    try:
        two = by_claim("two", "part", {"main": [{"name": "gpu"}], "side": [{"name": "gpu"}]})
        gpu.create(two, by_claim("one", "part"))
        gpu.wait_running("one")
        why = "so its 2 containers could use more than the claim has: give each container a request of its own"
        gpu.cluster.wait(lambda: any(why in text for text in gpu.cluster.messages("two")), "its events say why")
        assert not gpu.has_run("two")
    finally:
        gpu.remove_all()
        gpu.cluster.request("DELETE", f"{TEMPLATES}/part")


# What an image brings, and what users try.

IMAGE, HOME = "/var/lib/hami-core-image", "/var/lib/hami-core-of-image"
ESCAPES = {
    "CUDA_DEVICE_MEMORY_LIMIT_0": "99999m",
    "CUDA_DEVICE_SM_LIMIT": "100",
    "CUDA_DEVICE_SM_LIMIT_0": "100",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/mine",  # noqa: S108 - in the container
    "CUDA_REDIRECT": "/tmp/mine.so",  # noqa: S108 - in the container
    "CUDA_TASK_PRIORITY": "0",
    "GPU_CORE_UTILIZATION_POLICY": "disable",
    "CUDA_DISABLE_CONTROL": "true",
}


def bring(gpu: GpuNode, data: bytes, version: str) -> str:
    """Put a library where an image brings it, in place of the one before; return its SHA-256."""
    image = gpu.node.path("/var/lib") / "hami-core-image"
    shutil.rmtree(image, ignore_errors=True)
    image.mkdir()
    (image / f"libvgpu.so.{version}").write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def versions(gpu: GpuNode) -> set[str]:
    return {path.name for path in (gpu.node.path("/var/lib") / "hami-core-of-image" / "versions").iterdir()}


def library_in(gpu: GpuNode, pod: str) -> str:
    """Return the SHA-256 of the library that a running container has."""
    pid = gpu.node.container_pids(gpu.node.container_id("default", pod, "main"))[0]
    return hashlib.sha256(Path(f"/proc/{pid}/root/usr/local/vgpu/libvgpu.so").read_bytes()).hexdigest()


@pytest.fixture
def with_an_image(gpu: GpuNode) -> Iterator[GpuNode]:
    """Yield the node whose agent installs what an image has brought."""
    bring(gpu, a_library(b"first"), "v1")
    settings = {"hami_core_directory": HOME, "hami_core_image_directory": IMAGE, "hami_core_sha256": []}
    yield from _with_settings(gpu, isolation="hami-core", **settings)
    shutil.rmtree(gpu.node.path("/var/lib") / "hami-core-image", ignore_errors=True)


def change_library(gpu: GpuNode, data: bytes, version: str, accepted: Sequence[str] = ()) -> str:
    """Upgrade the agent to another library."""
    gpu.kill_agent()
    sha256 = bring(gpu, data, version)
    gpu.change_settings(hami_core_sha256=list(accepted))
    gpu.start_agent()
    gpu.wait_ready()
    return sha256


def has_tried(gpu: GpuNode, pod: str) -> bool:
    return "written" in gpu.node.container_log("default", pod, "main")


def test_a_containers_own_variables_and_programs_take_none_of_its_limits_away(with_an_image: GpuNode) -> None:
    gpu = with_an_image
    script = (
        "rm -f /usr/local/vgpu/usage.cache && echo removed; mv /usr/local/vgpu/usage.cache /tmp/x && echo moved; "
        "echo > /etc/ld.so.preload && echo emptied; echo > /usr/local/vgpu/libvgpu.so && echo changed; "
        "echo counted > /usr/local/vgpu/usage.cache && echo written; exec sleep 3600"
    )
    env = [{"name": name, "value": value} for name, value in ESCAPES.items()]
    limits = {COUNT: 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
    nobody = {"runAsUser": 65534, "runAsGroup": 65534}
    gpu.create(
        gpu_pod("root", gpu_container("main", limits, script, env=env)),
        gpu_pod("nobody", gpu_container("main", limits, script, env=env, securityContext=nobody)),
    )
    gpu.wait_running("root", "nobody")
    for name in ("root", "nobody"):
        found = gpu.node.container_environment("default", name, "main")
        changed = {name: value for name, value in ESCAPES.items() if found[name] == value}
        assert changed == {"CUDA_DISABLE_CONTROL": "true"}, (
            "which HAMi-core does not read, and the agent did not follow"
        )
        assert (found["CUDA_DEVICE_MEMORY_LIMIT_0"], found["CUDA_DEVICE_SM_LIMIT_0"]) == ("3000m", "30")
        gpu.cluster.wait(partial(has_tried, gpu, name), "it has tried all of it")
        said = gpu.node.container_log("default", name, "main").split()
        assert not {"removed", "moved", "emptied", "changed"} & set(said), said


def test_an_upgrade_changes_nothing_for_who_runs_and_what_nobody_has_goes(with_an_image: GpuNode) -> None:
    gpu = with_an_image
    first = hashlib.sha256(a_library(b"first")).hexdigest()
    gpu.create(gpu_pod("old", one_card()))
    gpu.wait_running("old")
    second = change_library(gpu, a_library(b"second"), "v2")
    gpu.create(gpu_pod("new", one_card()))
    gpu.wait_running("new")
    assert (library_in(gpu, "old"), library_in(gpu, "new")) == (first, second)
    info = f'gpuledger_agent_hami_core_info{{sha256="{second}",version="v2"}}'
    assert gpu.agent_metrics()[info] == 1
    assert versions(gpu) == {first[:16], second[:16]}
    gpu.remove("old")
    gpu.cluster.wait(lambda: versions(gpu) == {second[:16]}, "the version that nobody has is removed", 150)
    change_library(gpu, a_library(b"first"), "v1")  # and back
    gpu.create(gpu_pod("again", one_card()))
    gpu.wait_running("again")
    assert (library_in(gpu, "again"), library_in(gpu, "new")) == (first, second)


def image_with_a_library(gpu: GpuNode) -> str:
    """Bring an image to the node that has what HAMi's has; return its name."""
    busybox, name = static_busybox(), "gpuledger.test/hami:v1"
    assert busybox is not None
    layer, tar = io.BytesIO(), gpu.node.directory / "hami.tar"
    with tarfile.open(fileobj=layer, mode="w") as files:
        for file, content in {"libvgpu.so.v1": a_library(b"of an image"), "ld.so.preload": b"/elsewhere"}.items():
            entry = tarfile.TarInfo(f"k8s-vgpu/lib/nvidia/{file}")
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
    write_image(tar, name, [busybox_layer(busybox), layer.getvalue()], ["/bin/sh"])
    gpu.node.import_image(tar)
    tar.unlink()
    return name


def test_an_image_brings_its_library_and_sees_neither_node_nor_token(gpu: GpuNode) -> None:
    objects = the_helm().objects(hamiCore={"image": image_with_a_library(gpu), "pullPolicy": "Never"})
    spec = objects["DaemonSet", "gpuledger-agent"]["spec"]["template"]["spec"]
    (init,) = spec["initContainers"]
    names = {mount["name"] for mount in init["volumeMounts"]}
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    show = f"ls /hami-core; sha256sum /hami-core/*; ls {token}; echo done; exec sleep 3600"
    pod = gpu_pod("brings", gpu_container("main", {}, show))
    pod["spec"]["initContainers"] = [init]
    pod["spec"]["volumes"] = [volume for volume in spec["volumes"] if volume["name"] in names]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "hami-core-image", "mountPath": "/hami-core"}]
    gpu.create(pod)
    gpu.wait_running("brings")
    gpu.cluster.wait(lambda: "done" in gpu.node.container_log("default", "brings", "main"), "it has shown all")
    said = gpu.node.container_log("default", "brings", "main").split()
    assert said[0] == "libvgpu.so.v1"
    assert hashlib.sha256(a_library(b"of an image")).hexdigest() in said
    assert "token" in said, "beside it, a container has the account's token"
    seen = gpu.cluster.pod("brings")["spec"]["initContainers"][0]["volumeMounts"]
    assert [mount["name"] for mount in seen if mount["mountPath"] == token] == ["no-token"]


def test_a_library_that_is_not_listed_reaches_no_container_and_its_pod_says_so(with_an_image: GpuNode) -> None:
    gpu = with_an_image
    accepted = hashlib.sha256(a_library(b"third")).hexdigest()
    change_library(gpu, a_library(b"second"), "v2", [accepted])
    gpu.create(gpu_pod("waits", one_card()))
    gpu.cluster.wait(
        lambda: any("hami_core_sha256 does not list" in text for text in gpu.cluster.messages("waits")),
        f"the pod's events say what is missing: {gpu.log_tail()}",
    )
    change_library(gpu, a_library(b"third"), "v3", [accepted])
    gpu.wait_running("waits")
    assert library_in(gpu, "waits") == accepted


def test_a_node_that_lacks_what_its_setting_names_starts_nothing_and_says_so(gpu: GpuNode) -> None:
    changed = _with_settings(gpu, isolation="mps", mps_directory="/var/lib/no-mps")
    next(changed)
    gpu.create(gpu_pod("waits", one_card()))
    gpu.cluster.wait(
        lambda: any("the node's isolation is mps" in text for text in gpu.cluster.messages("waits")),
        f"the pod's events say what is missing: {gpu.log_tail()}",
    )
    mps = gpu.node.path("/var/lib") / "no-mps"
    for name in ("pipe", "shm"):
        (mps / name).mkdir(parents=True, exist_ok=True)
    copy = gpu.node.path("/var/lib") / "nvidia-cuda-mps-control"
    copy.write_text("#!/bin/sh\necho $$ > /var/lib/no-mps/pipe/nvidia-cuda-mps-control.pid\nsleep 3600 & wait\n")
    copy.chmod(0o755)
    daemon = gpu.node.run("mps", ["/var/lib/nvidia-cuda-mps-control"])
    gpu.wait_running("waits")
    env = gpu.node.container_environment("default", "waits", "main")
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1000M"
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == MPS_PIPES
    daemon.kill()
    next(changed, None)


def test_the_devices_come_from_the_toolkits_cdi_files_where_there_are_any(gpu: GpuNode) -> None:
    card = gpu.state.cards[0].uuid
    mount = {"hostPath": "/var/lib/driver.txt", "containerPath": "/driver.txt", "options": ["ro", "bind"]}
    edits = {
        "env": ["FROM_TOOLKIT=yes"],
        "mounts": [mount],
    }
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": card, "containerEdits": edits}],
        "containerEdits": {"env": ["FOR_ALL=yes"]},
    }
    (gpu.node.path("/var/lib") / "driver.txt").write_text("a library\n")
    file = gpu.node.path("/var/run/cdi") / "nvidia.json"
    file.write_text(json.dumps(spec))
    main = gpu_container("main", one_card(), "cat /driver.txt; exec sleep 3600")
    gpu.create(gpu_pod("toolkit", main, annotations={"nvidia.com/use-gpuuuid": card}))
    gpu.wait_running("toolkit")
    env = gpu.node.container_environment("default", "toolkit", "main")
    assert (env["FROM_TOOLKIT"], env["FOR_ALL"], env["GPULEDGER_UUIDS"]) == ("yes", "yes", card)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert gpu.node.container_log("default", "toolkit", "main") == "a library\n"
    file.unlink()
