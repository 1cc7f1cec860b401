"""One operator: the real workflows, connected by the real start-up code, over a simulated network."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from fakes.virtual_time import LoopClock
from gpuledger.controller import startup
from gpuledger.controller.startup import Operator, build_operator
from gpuledger.formats.scheduler import BindArguments, FilterArguments, PreemptArguments
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import ALLOCATIONS, PODS
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import BindFailed, GpuledgerError
from gpuledger.workflows.kinds import LEASE, Watcher, follow_kind
from gpuledger.workflows.placing.place_pod import FilterResult
from simulation.api_server import Json, Kind, everything, selector_of
from simulation.network import Client
from simulation.nodes import NodesSeen
from simulation.process_loop import new_loop
from simulation.quota_checks import quota_object
from simulation.watches import KopfWatch, Watch

if TYPE_CHECKING:
    from simulation.world import World

NEVER_ENDING = ("resync_every", "wait_active", "wait_passive")
"""Coroutines that the parts of an operator run beside themselves."""

NO_CONNECTION = "connection refused"


class OperatorProcess:
    """A process from its start to its death. What it knows dies with it; what it has sent does not."""

    def __init__(
        self, world: "World", name: str, host: str | None, ended: Callable[[str], None], skew_s: float = 0.0
    ) -> None:
        self.name = name
        self.alive = True
        self.loop = new_loop(world.clock)
        self.clock = LoopClock(skew_s)
        """Of its machine."""
        self.watches: list[Watch] = []
        self.binds: dict[str, Callable[[], bool] | None] = {}
        """Pod UID -> whether its scheduler waits for its Bind; None: it was told that this has failed."""
        self.view = NodesSeen()
        """What it has been shown of the nodes."""
        self.restores = world.api.starts
        """How often etcd had been restored when it was started."""
        self._world = world
        self._ended = ended
        self._client = client = cast(KubeClient, Client(world, self))
        pods_by = Watcher.KOPF if world.scenario.kopf_pods else Watcher.PLAIN
        given = client, world.scenario.settings, self.clock, host, pods_by
        self.operator: Operator = self.loop.call(build_operator, *given)
        self.loop.call(self._start)

    def _start(self) -> None:
        operator = self.operator
        observer = operator.workflows.observer
        quota_mib = self._world.scenario.quota_mib
        followed = {each.kind.paths[0]: each for each in operator.subscriptions}
        plain = [PODS, LEASE.paths[0]]
        self.watches.append(KopfWatch(self._world, self, Kind.NODE, everything, observer.node))
        if quota_mib:  # then what the watch of cards leaves out matters, and nothing may be
            operator.workflows.quotas.observe(quota_object(quota_mib), gone=False)
        else:
            self.watches.append(KopfWatch(self._world, self, Kind.CARD, everything, observer.allocation))
        for watch in self.watches:
            watch.start(None)
        if self._world.scenario.kopf_pods:
            watch = KopfWatch(self._world, self, Kind.POD, selector_of(followed[PODS].kind.fields), observer.any_pod)
            watch.start(self._world.api.version)
            self.watches.append(watch)
            plain.remove(PODS)
        if quota_mib:
            plain.append(ALLOCATIONS)
        for each in operator.subscriptions:
            each.listed.set()
            if each.kind.watcher is Watcher.KOPF:
                operator.lists.read(each.kind.plural)
        parts = [startup._keep_in_sync(operator), startup._give_room(operator), startup._preempt(operator)]
        parts += [follow_kind(self._client, each) for each in operator.subscriptions if each.kind.paths[0] in plain]
        self.parts = [self.loop.create_task(part, name=_name_of(part)) for part in parts]
        for task in self.parts:
            task.add_done_callback(self._part_ended)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """End, as the real process does when one of its parts ends."""
        if self.alive:
            self._ended(f"{task.get_name()} ended: {task.exception()!r}")

    # What the checker looks at. The parts are not meant to be looked into; it is all in this place.

    @property
    def ledger(self) -> Ledger:
        """What the operator takes for the truth."""
        return self.operator.workflows.placer._ledger

    def left_over(self) -> dict[str, list[str]]:
        """Return what there must be nothing of once all is done: kind -> names."""
        operator = self.operator
        tasks = [task for task in self.loop.open_tasks() if task not in self.parts]
        return {
            "holds": [str(seat.key) for seat in self.ledger.seats._seats.values() if seat.until_s > self.loop.time()],
            "binds": list(operator.workflows.placer._binds),
            "earmarks": list(operator.workflows.waiting._earmarks),
            "promises": list(self.ledger.promises._placements),
            "tasks": [task.get_name() for task in tasks if _name_of(task.get_coro()) not in NEVER_ENDING],
        }

    def is_put_off(self, uid: str) -> bool:
        """Return whether a pod has to wait because it could not be bound several times."""
        return self.loop.call(self.operator.workflows.placer._failures.put_off_s, uid) > 0

    def is_binding(self, uid: str) -> bool:
        """Return whether a pod is being bound."""
        return self.operator.workflows.placer._binder.is_binding(uid)

    def is_active(self) -> bool:
        """Return whether the operator takes itself for the one that writes."""
        return self.operator.workflows.context.leadership.is_active()

    def waiting_pods(self) -> set[str]:
        """Return the UIDs of the pods that are taken to wait for room."""
        return self.operator.workflows.waiting.waiting()

    def known_pods(self) -> set[str]:
        """Return the UIDs of the pods that are taken for bound and alive."""
        return set(self.operator.workflows.releaser._bound)

    def die(self) -> None:
        """Stop at once, in the middle of everything."""
        self.alive = False
        for watch in self.watches:
            watch.stop()

    # The extender, without HTTP.

    def filter(self, pod: Json, node_names: list[str]) -> FilterResult:
        """Answer a Filter. Raises GpuledgerError for an answer with an error."""
        self._check_ready()
        return self.loop.call(self.operator.workflows.placer.filter, FilterArguments(pod, node_names))

    def preempt(self, arguments: PreemptArguments, answer: Callable[[Mapping[str, Sequence[str]]], None]) -> None:
        """Begin to look for victims; its answer says whom kube-scheduler has to evict on which node.

        Raises GpuledgerError if it can't even begin.
        """
        self._check_ready()
        self.loop.call(self.loop.create_task, self._preempt(arguments, answer))

    async def _preempt(
        self, arguments: PreemptArguments, answer: Callable[[Mapping[str, Sequence[str]]], None]
    ) -> None:
        answer(await self.operator.workflows.preemption.for_scheduler.preempt(arguments))

    def bind(self, arguments: BindArguments, answer: Callable[[str], None], is_connected: Callable[[], bool]) -> None:
        """Begin with a Bind; its answer is an error, or nothing. Raises GpuledgerError if it can't even begin."""
        self._check_ready()
        self.binds[arguments.uid] = is_connected
        self.loop.call(self.loop.create_task, self._bind(arguments, answer, is_connected))

    async def _bind(
        self, arguments: BindArguments, answer: Callable[[str], None], is_connected: Callable[[], bool]
    ) -> None:
        error = ""
        try:
            await self.operator.workflows.placer.bind(arguments, is_connected)
        except GpuledgerError as failure:
            error = str(failure)
        if error and self.binds.get(arguments.uid) is is_connected and is_connected():
            self.binds[arguments.uid] = None
        answer(error)

    def _check_ready(self) -> None:
        if not self.alive:
            raise BindFailed(NO_CONNECTION)
        if not self.operator.workflows.observer.synced:
            raise BindFailed("gpuledger has just started and is still reading the ledger")


def _name_of(steps: object) -> str:
    return str(getattr(steps, "__name__", ""))
