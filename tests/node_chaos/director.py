"""Does the steps of a plan at their times."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from chaos.admin import Admin
from chaos.outcome import Done
from chaos.pair import Hands
from chaos.steps import Step
from chaos.timeline import Timeline
from cluster.cluster import PODS
from fakes.nvml.fake_nvml import GONE, LOST, Failure
from gpuledger.formats.runtime.cdi import CHECKPOINT_FILE, FILE_PREFIX
from node.gpu_node import GpuNode
from node_chaos import claims
from node_chaos.arena import CDI_FILES, PLUGINS
from node_chaos.disks import Disk
from node_chaos.pods import body_of
from node_chaos.programs import Programs
from node_chaos.sight import Eyes
from node_chaos.steps import (
    BreakCard,
    Create,
    DamageCheckpoint,
    Delete,
    End,
    FillDisk,
    HangDisk,
    HitContainers,
    LoseDriver,
    ProtectDisk,
    RemoveGrants,
    RemoveSocket,
    Stop,
)

SAME_NAME_PAUSE_S = 0.3
FAULT = 94
"""An Xid: a contained memory error. After a while without one, the card is back; of others, only a reset mends it."""


class Workers:
    """Who does what, beside the programs' own hands: each does one thing after the other."""

    def __init__(self, admin: Admin, disks: Mapping[str, Disk]) -> None:
        self.admin, self.disks = admin, disks
        self.pods, self.files, self.cards = Hands("pods"), Hands("files"), Hands("cards")
        self.disk_hands = {name: Hands(f"disk {name}") for name in disks}

    def all(self) -> list[Hands]:
        """Return all hands."""
        return [self.pods, self.files, self.cards, *self.disk_hands.values()]

    def close(self) -> None:
        """End the threads."""
        for hands in self.all():
            hands.close()


class Director:
    """Has each step done by whom it concerns; itself it only keeps the time."""

    def __init__(self, gpu: GpuNode, programs: Programs, workers: Workers, eyes: Eyes) -> None:
        self._gpu, self._programs, self._workers, self._eyes = gpu, programs, workers, eyes
        self._timeline = Timeline()
        self._healthy = gpu.state
        self.done: list[Done] = []
        self.counts: Counter[str] = Counter()

    def direct(self, steps: tuple[Step, ...], seconds: float) -> None:
        """Do the steps within this time; then wait until all of it is done, and undone what is to be undone."""
        self._timeline.play(steps, self._perform, self._programs.look_after, seconds)
        for hands in self._workers.all():
            hands.wait()
        self._programs.wait()

    def _perform(self, step: Step) -> None:
        self.counts[type(step).__name__] += 1
        self.done.append(Done(time.monotonic(), step))
        workers = self._workers
        match step:
            case Create():
                workers.pods.do(self._create, step)
            case Delete():
                workers.pods.do(self._delete, step)
            case HitContainers(name=name):
                workers.pods.do(self._hit, name)
            case End(program=program, down_s=down_s, gently=gently):
                self._programs.end(program, down_s, gently)
            case Stop(program=stopped, for_s=for_s):
                self._programs.stop(stopped, for_s)
            case BreakCard() | LoseDriver():
                workers.cards.do(self._break, step)
            case _:
                self._disturb_files(step)

    def _disturb_files(self, step: Step) -> None:
        workers = self._workers
        match step:
            case FillDisk(disk=disk, for_s=for_s):
                hands = workers.disk_hands[disk]
                hands.do(workers.disks[disk].fill)
                hands.do(time.sleep, for_s)
                hands.do(workers.disks[disk].empty)
            case HangDisk(disk=disk, hang_s=hang_s, times=times):
                workers.disk_hands[disk].do(workers.disks[disk].hang, hang_s, times)
            case ProtectDisk(for_s=for_s):
                workers.disk_hands["agent"].do(workers.disks["agent"].protect, for_s)
            case DamageCheckpoint(how=how):
                workers.files.do(self._damage_checkpoint, how)
            case RemoveSocket():
                workers.files.do(self._remove, PLUGINS, "gpuledger-*.sock")
            case RemoveGrants():
                workers.files.do(self._remove, CDI_FILES, f"{FILE_PREFIX}*")

    # Requests.

    def _create(self, step: Create) -> None:
        body = body_of(step.pod)
        for path, each in claims.objects(body):
            self._workers.admin.try_to("POST", path, each)
        if self._workers.admin.try_to("POST", PODS, body) == 409:  # the last one of this name is there
            again = partial(self._workers.pods.do, self._create, step)
            self._timeline.at(time.monotonic() + SAME_NAME_PAUSE_S, again)

    def _delete(self, step: Delete) -> None:
        options: dict[str, Any] = {"gracePeriodSeconds": 0} if step.by_force else {}
        self._workers.admin.try_to("DELETE", f"{PODS}/{step.name}", options)

    # The node.

    def _hit(self, name: str) -> None:
        """Kill what runs in a pod's containers."""
        self._eyes.kill(str(self._uid(name)))

    def _uid(self, name: str) -> str | None:
        found = [uid for uid, pod in self._workers.admin.pods().items() if pod["metadata"]["name"] == name]
        return found[0] if found else None

    def _damage_checkpoint(self, how: str) -> None:
        file = self._gpu.node.path(PLUGINS) / CHECKPOINT_FILE
        with contextlib.suppress(FileNotFoundError):
            if how == "removed":
                file.unlink()
            else:
                os.truncate(file, file.stat().st_size // 2)

    def _remove(self, directory: str, pattern: str) -> None:
        for file in self._gpu.node.path(directory).glob(pattern):
            with contextlib.suppress(OSError):  # it is gone already, or its disk is read-only
                file.unlink()

    def _break(self, step: BreakCard | LoseDriver) -> None:
        """Let the driver tell of a fault, and later of none; events stay told."""
        if isinstance(step, LoseDriver):
            self._gpu.show(replace(self._gpu.state, driver_error=GONE))
            time.sleep(step.for_s)
        else:
            uuid = self._healthy.cards[step.card].uuid
            failures = (Failure(LOST, card=uuid),) if step.lost_for_s else ()
            self._gpu.show(replace(self._gpu.state.with_event(uuid, FAULT), failures=failures))
            time.sleep(step.lost_for_s or 0.0)
        self._gpu.show(replace(self._healthy, events=self._gpu.state.events))
