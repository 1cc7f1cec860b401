"""A control plane with one real node, for many runs: it is emptied after each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from build_control_plane import ensure_binaries, ensure_node_binaries
from chaos.admin import Admin
from chaos.history import History
from cluster.claims import CLAIMS, TEMPLATES, create_class
from cluster.cluster import PODS
from control_plane import ControlPlane, ControlPlaneError
from fakes.mps import control_program
from fakes.nvml import fake_nvml
from fakes.shared_library import a_library
from gpuledger.agent.grants.files import RECORD, UNFINISHED
from gpuledger.formats.runtime.cdi import CHECKPOINT_FILE, FILE_PREFIX, FILE_SUFFIX
from gpuledger.formats.runtime.mps import FILE_NAME, MpsStatus, Phase
from local_node import BoxProcess, Node
from node.gpu_node import STATE as STATE_OF_DRIVER
from node.gpu_node import GpuNode
from node_chaos.disks import Disk, lacking
from node_chaos.plan import CARDS, LONGEST_OUTAGE_S
from node_chaos.programs import IMPATIENT_AGENT, Programs
from node_chaos.sight import CARD_FILES, Eyes, vendor_spec
from node_chaos.steps import Delivery, Isolation

Json = dict[str, Any]

NODE = "node-1"
CDI_FILES = "/var/run/cdi"
PLUGINS = "/var/lib/kubelet/device-plugins"
DISKS = {"agent": (CDI_FILES, 16), "kubelet": ("/var/lib/kubelet", 64)}
"""Name -> directory, and MiB."""

STATE, STATE_ON_DISK = "/var/lib/gpuledger", f"{CDI_FILES}/state"
"""The agent's own directory, and where it is on its disk."""

RELEASE_DELAY_S = 4 * LONGEST_OUTAGE_S
"""Where an agent was away and can't say what is left of a pod, its share ends in time. That must be when all outages
are over, or the checker would find it, and rightly."""

NOTES = "/var/lib/fake-nvml/limits"
"""Where the driver notes limits."""

LIMITING_DRIVER = "615.71.09"
MPS_ENDS_S = 15.0
HAMI, MPS, MPS_PROGRAMS = "/var/lib/hami-core", "/var/lib/mps", "/var/lib/mps-programs"

SETTINGS = {
    "release_delay_s": RELEASE_DELAY_S,
    "fault_quiet_s": 3.0,
    "hami_core_directory": HAMI,
    "mps_directory": MPS,
    "isolation": "none",
}
EMPTY_S = 90.0


class NodeArena:
    """Everything that a run needs: `with NodeArena() as arena:`."""

    def __init__(self, agent: Path = IMPATIENT_AGENT, *arguments: str) -> None:
        """Make one that is not started, with a program that runs the agent, and what it is to be told."""
        self._agent = [str(agent), *arguments]
        self.is_empty = True
        """Whether the last run has left nothing."""
        self._delivery: Delivery = "cdi"
        self._isolation: Isolation = "none"
        self._mps_daemons: BoxProcess | None = None
        self._daemons_started = 0
        self._means = ("cdi", "none", *self._agent)

    def __enter__(self) -> Self:
        if problem := lacking():
            raise ControlPlaneError(f"no disk that can hang can be made here, for want of: {problem}")
        ensure_binaries()
        ensure_node_binaries()
        with ExitStack() as stack:
            plane = ControlPlane(json_storage=True, nodes=[NODE])
            stack.callback(plane.stop)
            plane.start()
            self.node = stack.enter_context(Node.running(NODE, plane))
            self.disks = {name: Disk(self.node, *place) for name, place in DISKS.items()}
            self._mount_disks()
            self.gpu = GpuNode(plane, self.node, CARDS, **SETTINGS)
            stack.callback(self.gpu.cluster.close)
            self._driver_version = self.gpu.state.driver_version
            self._show_cards()
            self._bring_means()
            self.programs = Programs(self.gpu, self._agent)
            stack.callback(self.programs.close)
            stack.callback(self.node.stop)
            self.admin = Admin(plane)
            stack.callback(self.admin.close)
            self.history = stack.enter_context(History(plane.etcd_url))
            self.programs.hands["agent"].do(self.programs.start, "agent")
            self.programs.wait()
            self.gpu.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def card_uuids(self) -> tuple[str, ...]:
        """The UUIDs of the node's cards, by their index."""
        return tuple(card.uuid for card in self.gpu.state.cards)

    def eyes(self) -> Eyes:
        """Return eyes for the node."""
        return Eyes(self.node, self.card_uuids, self._delivery, NOTES if self._isolation == "driver" else "")

    def run_agent(self, agent: Path, *arguments: str) -> None:
        """Have another program that runs the agent, from its next start on."""
        self.programs.agent = [str(agent), *arguments]

    def change(self, delivery: Delivery, isolation: Isolation) -> None:
        """Have an agent that lets containers know their cards, and keeps them to their shares, in these ways.

        To be called while there are none.
        """
        notes = self.node.path(NOTES)
        notes.write_text("")
        notes.chmod(0o666)
        means = (delivery, isolation, *self.programs.agent)
        if means == self._means:
            return
        self._means = means
        self._delivery, self._isolation = delivery, isolation
        by_driver, by_mps = isolation == "driver", isolation == "mps"
        self.programs.hands["agent"].do(self._change, by_driver)
        self.gpu.change_settings(delivery=delivery, isolation=isolation, mps_daemon=by_mps)
        if self._mps_daemons is not None:
            self._mps_daemons.terminate(MPS_ENDS_S)
            self._mps_daemons = None
        if by_mps:
            self._mps_daemons = self._start_mps()
        self.programs.end("agent", 0.0, gently=False)
        self.programs.wait()
        self.gpu.wait_ready()
        if by_mps:
            self.gpu.cluster.wait(self._mps_runs, "all MPS daemons run")

    def _mps_runs(self) -> bool:
        file = self.node.path(MPS) / FILE_NAME
        found = MpsStatus.read(file.read_text()) if file.exists() else MpsStatus()
        return {each.phase for each in found.daemons} == {Phase.RUNNING}

    def _change(self, by_driver: bool) -> None:
        """Have a driver that limits memory, or one that does not."""
        version, notes = (LIMITING_DRIVER, NOTES) if by_driver else (self._driver_version, None)
        self.gpu.show(replace(self.gpu.state, driver_version=version, limits=notes))

    def _start_mps(self) -> BoxProcess:
        environment = {
            "PATH": f"{MPS_PROGRAMS}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(fake_nvml.library_directory()),
            "FAKE_NVML_STATE": STATE_OF_DRIVER,
            "PYTHONPATH": ":".join(sys.path),
        }
        argv = [sys.executable, "-m", "gpuledger", "mps-daemon", "--settings", str(self.gpu.installation.settings_file)]
        self._daemons_started += 1
        return self.node.run(f"mps-{self._daemons_started}", argv, env=environment)

    def counters(self) -> dict[str, int]:
        """Return each container's counters of HAMi-core: path -> how much of the disk they take, in bytes."""
        found = {}
        for file in self.node.path(f"{HAMI}/containers").glob("*/usage.cache"):
            with contextlib.suppress(FileNotFoundError):  # it has just gone
                found[str(file)] = file.stat().st_blocks * 512
        return found

    def files(self) -> dict[str, bytes]:
        """Return what the agent has written for containers, and has not finished: name of a CDI file -> content.

        Without CDI, the record of a directory stands for it, which has the same content.
        """
        found = {file.name: file for file in self.node.path(CDI_FILES).iterdir()}
        shares = self.node.path(STATE) / "shares"
        below = (Path(place) / name for place, _, names in os.walk(shares) for name in names)  # some go meanwhile
        for file in below:
            name = file.relative_to(shares).parts[0]
            if file.name == RECORD:
                found[f"{FILE_PREFIX}{name}{FILE_SUFFIX}"] = file
            elif file.suffix == UNFINISHED:
                found[f"{FILE_PREFIX}{name}-{file.name}"] = file
        texts = {}
        for name, file in found.items():
            with contextlib.suppress(OSError):  # it has just gone, or is a directory
                texts[name] = file.read_bytes()
        return texts

    def checkpoint(self) -> bytes:
        """Return the kubelet's record of slots, nothing if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self.node.path(PLUGINS) / CHECKPOINT_FILE).read_bytes()
        return b""

    def clear(self) -> None:
        """Remove what a run has left. Raises RuntimeError if it stays."""
        eyes, self.is_empty = self.eyes(), False
        for pod in self.admin.pods().values():
            self.admin.try_to("DELETE", f"{PODS}/{pod['metadata']['name']}")
        self.admin.try_to("DELETE", TEMPLATES)
        deadline = time.monotonic() + EMPTY_S
        while self.history.objects("pod") or self.gpu.holding() or eyes.look().containers:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the node can't be emptied: {self.gpu.holding()}, {eyes.look().containers}")
            time.sleep(0.3)
        self.admin.try_to("DELETE", CLAIMS)
        self.is_empty = True

    def _bring_means(self) -> None:
        """Bring what isolation needs: a class for claims, what lies where HAMi-core does, and MPS' program."""
        create_class(self.gpu.cluster)
        home = self.node.path(HAMI)
        home.mkdir(exist_ok=True)
        (home / "libvgpu.so").write_bytes(a_library(b"chaos"))
        (home / "ld.so.preload").write_text("\n")
        control_program.install(str(self.node.path(MPS_PROGRAMS)))

    def _mount_disks(self) -> None:
        """Begin anew on disks of our own: who has a directory open would go on with the one below."""
        self.node.kill_kubelet()
        self.node.kill_containerd()
        for disk in self.disks.values():
            disk.mount()
        self.node.execute("mkdir", "-p", STATE, STATE_ON_DISK)
        self.node.execute("mount", "--bind", STATE_ON_DISK, STATE)
        self.node.start_containerd()
        self.node.start_kubelet()

    def _show_cards(self) -> None:
        files = self.node.path(CARD_FILES)
        files.mkdir(exist_ok=True)
        for uuid in self.card_uuids:
            (files / uuid).write_text(uuid)
        file = self.node.path(CDI_FILES) / "nvidia.json"
        file.write_text(json.dumps(vendor_spec(self.card_uuids)))
