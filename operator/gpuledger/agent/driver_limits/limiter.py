"""Has the driver hold each container to its share of its cards' memory, from before its first process to its last.

A hook asks when the container's control group exists, and the container waits for the answer. What was set is written
down before it is set: an agent that died in between finds it. A limit goes with its group; where the group outlives the
container's last process, the limit is removed, and so is a guarantee, which groups further up count as well.

What containers of a pod have by one claim is one amount, so the pod's own group is limited, too: to what its containers
have together, each claim counted once. Pods have no such group in common, so they can't use one claim at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gpuledger.agent.delivery.grant_files import write_whole
from gpuledger.agent.devices.source import MemoryLimit
from gpuledger.agent.driver_limits.control_groups import ControlGroups, GroupWatch
from gpuledger.agent.driver_limits.hook_pipes import HookPipes
from gpuledger.formats.runtime.cdi import Grant, claim_of_name
from gpuledger.formats.runtime.cgroup import pod_group, pod_uid
from gpuledger.formats.runtime.limit_request import TIMEOUT_S, LimitRequest, read_request
from gpuledger.model.errors import BadInput, GpuledgerError

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 256
"""Requests that are answered at the same time; the others wait in the FIFO, and their hooks with them."""

DRIVER_TIMEOUT_S = TIMEOUT_S - 2.0
"""So that the hook still waits when the driver does not answer, and can say so."""

LIMITED, RECORD_SUFFIX = "limited", ".json"
"""Directory with what was set: a file for each grant, which has its groups' directories -> its cards' UUIDs."""

SetLimits = Callable[[Iterable[MemoryLimit], float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Limited:
    """A control group that has limits."""

    name: str
    """Of the grant."""
    uuids: tuple[str, ...]


class DriverLimits:
    """The limits of this node's containers. Does nothing while no container is to have any."""

    def __init__(
        self, directory: Path, grants: Callable[[], Iterable[Grant]], groups: ControlGroups, set_limits: SetLimits
    ) -> None:
        """Make one; `set_limits` has the driver set limits, within a time in seconds."""
        self.directory = directory
        self._grants, self._groups, self._set_limits = grants, groups, set_limits
        self._pipes = HookPipes(directory, self._take)
        self._limited: dict[Path, _Limited] = {}  # directory of a control group -> its limits
        self._watch: GroupWatch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._clearing: set[Path] = set()

    def resume(self) -> None:
        """Go on where an earlier agent has left off, if there was one. To be called when the grants are known."""
        if not self._pipes.was_used():
            return
        try:
            self._load()
            self._open()
            self._pipes.keep({grant.name for grant in self._grants()})
        except OSError as error:  # tried again when a container starts
            logger.warning("limits that the driver keeps: %s", error)
        for directory in tuple(self._limited):
            self._watch_group(directory)
            self._observe(directory)

    def close(self) -> None:
        """Stop; limits stay as they are."""
        self._pipes.close()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for task in self._tasks:
            task.cancel()

    def expect(self, name: str) -> None:
        """Be ready for the start of a grant's container, before its runtime can know of it. Raises OSError."""
        self._open()
        self._pipes.expect(name)

    def forget(self, grant: Grant) -> None:
        """Note that a grant is over."""
        if not grant.limits:
            return
        try:
            self._pipes.forget(grant.name)
        except OSError as error:
            logger.warning("%s can't be removed yet: %s", grant.name, error)
        self.tidy()

    def tidy(self) -> None:
        """Remove the limits of groups whose last process has ended without our notice."""
        for directory in tuple(self._limited):
            self._observe(directory)

    def _open(self) -> None:
        (self.directory / LIMITED).mkdir(parents=True, exist_ok=True)
        self._pipes.open()
        if self._watch is None:
            try:
                self._watch = self._groups.watch(self._observe)
            except OSError as error:  # `tidy` looks all the same
                logger.info("control groups are not watched: %s", error)

    # A container starts.

    def _take(self, line: bytes) -> None:
        self._start(self._answer(line))
        if len(self._tasks) >= MOST_AT_ONCE:
            self._pipes.pause()

    async def _answer(self, line: bytes) -> None:
        try:
            request = read_request(line)
        except BadInput as error:
            logger.warning("%s", error)
            return
        refusal = ""
        try:
            await self._limit(request)
        except (GpuledgerError, OSError) as error:
            refusal = str(error)
            logger.warning("a container of grant %s must not start: %s", request.name, refusal)
        self._pipes.answer(request.name, request.pid, refusal)

    async def _limit(self, request: LimitRequest) -> None:
        """Set the limits that a hook asks for. Raises BadInput, LimitRefused, DriverGone, OSError."""
        grant = next((each for each in self._grants() if each.name == request.name), None)
        if grant is None:
            raise BadInput("the node agent has given the container no cards; the kubelet tries again")
        directory = self._groups.directory(request.group)
        if grant.of_one_pod and pod_uid(request.group) != grant.pod_uid:
            raise BadInput(f"the control group {request.group[:200]} is not one of the pod with UID {grant.pod_uid}")
        if not directory.is_dir():
            raise BadInput(f"the node agent does not see the control group {directory}: see docs/isolation.md")
        beside = self._running(lambda _, limited: limited.name == grant.name) - {directory}
        self._check_alone(request.group, grant, beside)
        self._note(directory, grant)
        limits = [
            MemoryLimit(each.uuid, str(directory), 0 if beside else each.guaranteed_mib, each.most_mib)
            for each in grant.limits
        ]
        await self._set_limits([*self._limits_of_pod(request.group), *limits], DRIVER_TIMEOUT_S)
        logger.info("pod %s/%s, container %s: limited in %s", grant.namespace, grant.pod, grant.container, directory)

    def _check_alone(self, group: str, grant: Grant, beside: Iterable[Path]) -> None:
        """Check that no other pod uses a claim of which a container is about to start. Raises BadInput if one does."""
        if grant.of_one_pod or grant.claim is None or not grant.limits:
            return
        uid = pod_uid(group)
        if uid is None:
            raise BadInput(f"the control group {group[:200]} does not tell which pod uses claim {grant.claim.name}")
        others = sorted({str(pod_uid(str(each))) for each in beside} - {uid})
        if others:
            raise BadInput(
                f"claim {grant.claim.name} has a part of {', '.join(each.uuid for each in grant.limits)}, and the pod "
                f"with UID {others[0]} uses it: isolation by the driver can't keep several pods to one amount. Delete "
                "one of the pods, let both be containers of one pod, or let the claim request whole GPUs"
            )

    def _limits_of_pod(self, group: str) -> list[MemoryLimit]:
        """Return the limits of a pod's own group: what its running containers have, that of each claim once.

        None where no container has its cards by a claim: then each container's own limit is enough.
        """
        uid, whole = pod_uid(group), pod_group(group)
        names = {self._limited[each].name for each in self._running(lambda path, _: pod_uid(str(path)) == uid)}
        grants = [grant for grant in self._grants() if grant.name in names]
        if whole is None or all(grant.claim is None for grant in grants):
            return []
        most_mib, guaranteed_mib = Counter[str](), Counter[str]()
        for limit in (limit for grant in grants for limit in grant.limits):
            most_mib[limit.uuid] += limit.most_mib
            guaranteed_mib[limit.uuid] += limit.guaranteed_mib
        directory = str(self._groups.directory(whole))
        return [MemoryLimit(uuid, directory, guaranteed_mib[uuid], most) for uuid, most in most_mib.items()]

    def _running(self, of: Callable[[Path, _Limited], bool]) -> set[Path]:
        """Return the groups that have limits and processes, of those that are wanted."""
        return {
            each for each, limited in self._limited.items() if of(each, limited) and self._groups.is_populated(each)
        }

    def _note(self, directory: Path, grant: Grant) -> None:
        """Remember a group whose limits are about to be set, on disk as well. Raises OSError."""
        self._limited[directory] = _Limited(grant.name, tuple(each.uuid for each in grant.limits))
        self._write(grant.name)
        self._watch_group(directory)

    def _watch_group(self, directory: Path) -> None:
        try:
            if self._watch is not None:
                self._watch.add(directory)
        except OSError as error:  # `tidy` looks at it as well
            logger.info("%s is not watched: %s", directory, error)

    # A container has ended.

    def _observe(self, directory: Path) -> None:
        if directory not in self._limited or directory in self._clearing:
            return
        populated = self._groups.is_populated(directory)
        if populated is None:
            self._drop(directory)  # and its limits with it
        elif not populated:
            self._clearing.add(directory)
            self._start(self._clear(directory))

    async def _clear(self, directory: Path) -> None:
        try:
            groups = [directory, *self._group_of_pod_at_rest(directory)]
            limits = [MemoryLimit(uuid, str(each)) for each in groups for uuid in self._limited[directory].uuids]
            await self._set_limits(limits, DRIVER_TIMEOUT_S)
            self._drop(directory)
        except GpuledgerError as error:
            if self._groups.is_populated(directory) is None:
                self._drop(directory)
            else:
                logger.info("the limits of %s can't be removed yet: %s", directory, error)
        finally:
            self._clearing.discard(directory)

    def _group_of_pod_at_rest(self, directory: Path) -> list[Path]:
        """Return the group of a container's pod, if that was limited as well, and no limited container runs there."""
        whole, uid = pod_group(str(directory)), pod_uid(str(directory))
        of_claim = claim_of_name(self._limited[directory].name) is not None
        if whole is None or not of_claim or self._running(lambda path, _: pod_uid(str(path)) == uid):
            return []
        return [Path(whole)]

    def _drop(self, directory: Path) -> None:
        limited = self._limited.pop(directory)
        try:
            self._write(limited.name)
        except OSError as error:  # read again by the next agent, which finds the group gone
            logger.info("the record of grant %s stays: %s", limited.name, error)

    # What is written down.

    def _write(self, name: str) -> None:
        groups = {str(path): limited.uuids for path, limited in self._limited.items() if limited.name == name}
        file = self.directory / LIMITED / f"{name}{RECORD_SUFFIX}"
        if groups:
            write_whole(file, orjson.dumps(groups))
        else:
            file.unlink(missing_ok=True)

    def _load(self) -> None:
        """Read what earlier agents have set. Raises OSError."""
        for file in (self.directory / LIMITED).glob(f"*{RECORD_SUFFIX}"):
            name = file.name.removesuffix(RECORD_SUFFIX)
            try:
                groups = orjson.loads(file.read_bytes())
                found = {Path(path): _Limited(name, tuple(uuids)) for path, uuids in groups.items()}
            except (ValueError, AttributeError, TypeError) as error:
                logger.warning("%s is no record of limits, and is left out: %s", file, error)
                continue
            self._limited |= found

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) == MOST_AT_ONCE - 1:
            self._pipes.resume()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("limits that the driver keeps: %r", error)
