"""Writes the status of Volcano's PodGroups, in place of Volcano's own scheduler.

Volcano's controller makes the pods of a Job once the phase of its PodGroup is `Inqueue`, and other programs wait for
`Running`. Here room is looked for when pods are there, so a group is Inqueue at once. What a status should say follows
from the pods that are known, and the object itself tells what it says: nothing has to be remembered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from attrs import define

from gpuledger.formats.kubernetes.gang import GroupStatus
from gpuledger.model.errors import Conflict, Denied, Invalid, NotFound
from gpuledger.model.gang import GangName, GangWay
from gpuledger.model.json_object import Json
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.members import GangState
from gpuledger.workflows.tasks import KeyedWorker

logger = logging.getLogger(__name__)

AT_ONCE = 4
OF_A_NAMESPACE = 2
"""Groups that are written at a time. A user can make thousands of them."""

PAUSE_S = 2.0
"""Between two writes of a group: its pods get their nodes one after the other."""

DENIED_PAUSE_S = 300.0
"""After a write that we have no permission for, and for which there may be one later."""


@dataclass(slots=True)
class _Seen:
    """A PodGroup as it was seen last."""

    uid: str
    status: GroupStatus
    written_s: float = float("-inf")
    """When we wrote it last, by the operator's clock."""
    timer: asyncio.TimerHandle | None = None


@define(eq=False, slots=False)
class VolcanoStatus(Component):
    """Follows Volcano's PodGroups and their pods, where the setting `volcano_pod_group_status` says so."""

    _gangs: Gangs
    _may_write: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._seen: dict[GangName, _Seen] = {}
        self.worker = KeyedWorker(self._write, AT_ONCE, self._may_write, group_of=lambda key: key.partition("/")[0])
        if self._settings.volcano_pod_group_status:
            groups, members = self._gangs.pod_groups, self._gangs.members
            groups.follow(GangWay.VOLCANO)
            groups.on_object.append(self._see)
            groups.on_change.append(self._forget_or_look)
            for listeners in (members.on_bound, members.on_done, members.on_minimum, members.on_newcomer):
                listeners.append(self._look_at)
            members.on_left.append(lambda _, state: self._look_at(state))

    def became_active(self) -> None:
        """See Follower."""
        for name in self._seen:
            self._look(name)

    async def stop(self) -> None:
        """Write no more."""
        await self.worker.stop()

    def _see(self, name: GangName, group: Json) -> None:
        if name.way is not GangWay.VOLCANO:
            return
        uid, status = str(group["metadata"].get("uid")), GroupStatus.of(group)
        seen = self._seen.get(name)
        if seen is None or seen.uid != uid:
            self._forget(name)
            self._seen[name] = _Seen(uid, status)
        else:
            seen.status = status
        self._look(name)

    def _forget_or_look(self, name: GangName) -> None:
        if self._gangs.pod_groups.knows(name):
            self._look(name)
        else:
            self._forget(name)

    def _forget(self, name: GangName) -> None:
        seen = self._seen.pop(name, None)
        if seen is not None and seen.timer is not None:
            seen.timer.cancel()

    def _look_at(self, state: GangState) -> None:
        self._look(state.name)

    def _look(self, name: GangName) -> None:
        """Have a group written, now or in a moment, if it does not say what it should."""
        seen = self._seen.get(name)
        if seen is None or seen.timer is not None or not self._may_write() or self._wanted(name) == seen.status:
            return
        wait_s = seen.written_s + PAUSE_S - self._clock.now_s()
        if wait_s > 0:
            seen.timer = self._tasks.after(wait_s, self._look_again, name, seen)
        else:
            self.worker.mark(f"{name.namespace}/{name.name}")

    def _look_again(self, name: GangName, seen: _Seen) -> None:
        seen.timer = None
        self._look(name)

    def _wanted(self, name: GangName) -> GroupStatus:
        group, state = self._gangs.pod_groups.of(name), self._gangs.members.get(name)
        if state is None:
            return GroupStatus.by_pods(group.minimum if group else 0, 0, 0)
        running = len(state.bound) + sum(1 for _ in state.uids_without_gpus(True))
        return GroupStatus.by_pods(state.minimum, running, len(state.done))

    async def _write(self, key: str) -> None:
        """Write a group's status as it should be by now. Raises ApiError."""
        namespace, _, own_name = key.partition("/")
        name = GangName(namespace, own_name, GangWay.VOLCANO)
        seen = self._seen.get(name)
        if seen is None or (wanted := self._wanted(name)) == seen.status:
            return
        seen.written_s = self._clock.now_s()
        try:
            written = await self._store.set_group_status(name.namespace, name.name, seen.uid, wanted.as_json())
        except (NotFound, Conflict):  # it is gone, or another one: the watch shows that
            return
        except Invalid as error:
            logger.error("the status of PodGroup %s of Volcano can't be written: %s", name, error)
            return
        except Denied as error:
            logger.error("the status of PodGroups of Volcano can't be written: %s", error)
            await asyncio.sleep(DENIED_PAUSE_S)
            raise
        if self._seen.get(name) is not seen:
            return
        seen.status = GroupStatus.of(written)
        if seen.status == wanted:
            self._look(name)
        else:  # such as by a definition with a path of its own for the status
            logger.error(
                "PodGroup %s of Volcano does not take its status: is the definition that of Volcano 1.15?", name
            )
