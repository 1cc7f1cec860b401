"""The stand-ins there are, and the writes that make them as many as are wanted.

Each is created, then shown to autoscalers by its condition, then deleted: each step is repeated until it has worked,
and what is left to do can be told from the pod alone. So an operator that begins here finds them all, by their label.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from uuid import uuid4

from attrs import define

from gpuledger.configuration.node_templates import NewNodes
from gpuledger.formats.kubernetes.stand_in import StandIn, read_stand_in, stand_in, unschedulable
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.model.clock import BoundedMap, Listeners
from gpuledger.model.errors import BadInput, Conflict, Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.placement.growth import NodeTemplate
from gpuledger.workflows.context import Component
from gpuledger.workflows.tasks import KeyedWorker

logger = logging.getLogger(__name__)

AT_ONCE = 4
GONE_KEPT = 4_096
DENIED_PAUSE_S = 60.0
"""After a write that we have no permission for, and for which there may be one later."""

SENTENCE = "stands for a node that is to come, for pods that wait for GPUs: docs/autoscaling.md of gpuledger"


@define(eq=False, slots=False)
class StandIns(Component):
    """Follows the pods with their label in our namespace, where no user can write."""

    _may_write: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._known: dict[str, StandIn] = {}  # name -> as the API server has it
        self._bodies: dict[str, tuple[str, Json]] = {}  # name of one that is to be created -> its template, and it
        self._leaving: set[str] = set()  # names of those that are to be deleted
        self._gone: BoundedMap[str, None] = BoundedMap(GONE_KEPT)  # UIDs: a watch can show one after its deletion
        self._was_denied = False
        self.worker = KeyedWorker(self._bring_up_to_date, AT_ONCE, self._may_write)
        self.on_change = Listeners[[]]()
        """Called when one has come, has changed, or is gone."""

    def known(self) -> Iterable[StandIn]:
        """Return those that exist, also those that are to be deleted."""
        return self._known.values()

    def find(self, name: str) -> StandIn | None:
        """Return one that exists."""
        return self._known.get(name)

    def staying(self, template: str) -> list[StandIn]:
        """Return those of a template that exist and are to stay, the oldest first."""
        found = (each for each in self._known.values() if each.template == template)
        return sorted((each for each in found if each.pod.name not in self._leaving), key=lambda each: each.order)

    def count(self, template: str) -> int:
        """Return how many of a template there are, or are about to be."""
        return len(self.staying(template)) + sum(of == template for of, _ in self._bodies.values())

    def templates(self) -> set[str]:
        """Return the templates of which there is one, or is about to be."""
        return {each.template for each in self._known.values()} | {of for of, _ in self._bodies.values()}

    # What the watch shows.

    def observe(self, pod: Json, gone: bool) -> None:
        """Observe a stand-in."""
        try:
            found = read_stand_in(pod)
        except (BadInput, KeyError, TypeError, AttributeError):
            self._counts.bad_input.labels("pod").inc()
            return
        if gone or pod["metadata"].get("deletionTimestamp"):
            self._is_gone(found)
        elif found.pod.uid not in self._gone:
            self._bodies.pop(found.pod.name, None)
            self._known[found.pod.name] = found
            if not found.is_seen:
                self.worker.mark(found.pod.name)
            self.on_change()

    def listing(self) -> Listed:
        """Note which are known; return what forgets those that are not in the list read since."""
        before = {each.pod.uid: each for each in self._known.values()}
        return forgetting(before, lambda uid: self._is_gone(before[uid]))

    def became_active(self) -> None:
        """See Follower: what another operator has begun is brought to its end."""
        for name in self._known:
            self.worker.mark(name)

    async def stop(self) -> None:
        """Write no more."""
        await self.worker.stop()

    def _is_gone(self, found: StandIn) -> None:
        self._gone.note(found.pod.uid, None)
        known = self._known.get(found.pod.name)
        if known is not None and known.pod.uid == found.pod.uid:
            del self._known[found.pod.name]
            self._leaving.discard(found.pod.name)
        self.on_change()

    # What is to be.

    def add(self, nodes: NewNodes, template: NodeTemplate) -> None:
        """Have one more created. Its name is its own before, so that a repeated write makes no second one."""
        name = f"stand-in-{nodes.name}-{uuid4().hex[:8]}"
        all_cards = {self._settings.resource_count: str(len(template.cards))}
        asked = {key: str(amount) for key, amount in nodes.stand_in_requests.items()} or all_cards
        tolerations = [
            {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
            for taint in nodes.taints
        ]
        self._bodies[name] = nodes.name, stand_in(name, nodes.name, nodes.labels, tolerations, asked)
        self.worker.mark(name)

    def remove(self, name: str) -> None:
        """Have one deleted. Idempotent."""
        if name in self._known:
            self._leaving.add(name)
            self.worker.mark(name)

    def remove_some(self, template: str, number: int) -> None:
        """Have so many of a template deleted: those first that are not created yet, then the newest."""
        for name in [name for name, (of, _) in self._bodies.items() if of == template][:number]:
            del self._bodies[name]  # its write may be under way: then the watch shows it, and it is one too many
            number -= 1
        for each in self.staying(template)[::-1][:number]:
            self.remove(each.pod.name)

    async def _bring_up_to_date(self, name: str) -> None:
        """Do what is left to do for one. Raises ApiError; it is tried again."""
        try:
            await self._create(name)
            found = self._known.get(name)
            if found is None:
                return
            if name in self._leaving:
                await self._delete(found)
            elif not found.is_seen:
                await self._store.set_pod_condition(found.pod, unschedulable(SENTENCE, self._clock.wall()))
        except NotFound:
            if (found := self._known.get(name)) is not None:
                self._is_gone(found)
        except Denied as error:
            if not self._was_denied:
                logger.error("nodes can't be asked for, see manifests/growth: %s", error)
            self._was_denied = True
            await asyncio.sleep(DENIED_PAUSE_S)
            self.worker.mark(name)

    async def _create(self, name: str) -> None:
        template, body = self._bodies.get(name, ("", None))
        if body is None:
            return
        try:
            created = await self._store.create_pod(body)
        except Conflict:  # an answer was lost: the watch shows it
            self._bodies.pop(name, None)
            return
        logger.info("a node of template %s is asked for by pod %s", template, name)
        self.observe(created, gone=False)

    async def _delete(self, found: StandIn) -> None:
        with suppress(Conflict):  # another pod has its name: the watch shows it
            await self._store.delete_pod(found.pod)
        self._is_gone(found)
