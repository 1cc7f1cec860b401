"""Brings the cluster's state, from watches or a full list, into the ledger. Every call can be repeated.

No object's content is an error of these calls: one that can't be processed is skipped (`skipping_bad_objects`).

Each object is passed to all parts that follow such objects (`Follower`), in the order of wiring.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from attrs import define

from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.kubernetes.pod import (
    bound_node,
    created_at,
    is_finished,
    may_be_placed,
    pod_identity,
    scheduler_of,
    was_tried,
)
from gpuledger.kube_api.reads import CLUSTERS_OWN
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.model.clock import BoundedMap, Listeners
from gpuledger.model.errors import BadInput, StateRolledBack
from gpuledger.model.json_object import Json
from gpuledger.model.share import StoredCard, part_of_card
from gpuledger.workflows.context import Component, Follower
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.inventory import InventoryKeeper, StuckKubelets
from gpuledger.workflows.journal.journal import check_age, state_rolled_back
from gpuledger.workflows.list_and_watch import (
    EventsDuringList,
    FirstList,
    skipping_bad_objects,
    version_of,
)
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.placing.place_pod import PodPlacer
from gpuledger.workflows.repair import Adopter


@define(eq=False, slots=False)
class HostTracker(Component):
    """Counts what bound pods take of their nodes: ours, and of other schedulers' those that ask for counted cards."""

    def __attrs_post_init__(self) -> None:
        self._hosts = self._ledger.hosts
        self._of_all = bool(self._formats.dialects.elsewhere)  # because others' pods can have counted cards

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """Observe a bound pod, of any scheduler."""
        is_ours = scheduler_of(pod) in self._settings.scheduler_names
        if not (is_ours or self._of_all):
            return
        request = self._formats.host(pod)
        if is_finished(pod) or not (is_ours or request.cards):
            self._hosts.forget(pod["metadata"]["uid"])
        else:
            self._hosts.bound(pod["metadata"]["uid"], bound_node(pod), request)

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """Record that a pod is gone."""
        self._hosts.forget(pod_uid)

    def known_bound(self) -> set[str]:
        """Return the UIDs of the pods that count."""
        return self._hosts.pod_uids()


PODS_REMEMBERED = 20_000
"""UIDs of pods that have come lately: a pod that is refused asks again and again, and counts once."""


@define(eq=False, slots=False)
class DemandHistory(Component):
    """Tells the chooser of every pod once that it has come, and once that it has gone.

    Placement learns from that: a help for preferences only. It is learned again after a start, from the pods that are
    bound then.
    """

    def __attrs_post_init__(self) -> None:
        self._came: BoundedMap[str, None] = BoundedMap(PODS_REMEMBERED)  # UIDs of pods that have counted
        self._running: dict[str, float] = {}  # UID of a bound pod -> its cards

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod that wants cards, or has got some."""
        uid = pod["metadata"]["uid"]
        if uid in self._came:
            return
        self._came.note(uid, None)
        with suppress(BadInput):
            request = self._formats.request(pod)
            if request is not None:
                self._chooser.arrived(request)

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """Observe a bound pod; one that was `bound_before` was not given its cards now."""
        uid = pod["metadata"]["uid"]
        if is_finished(pod):
            self.forget_bound(uid, pod)
            return
        if uid in self._running:
            return
        holders = self._ledger.holders.of(uid)
        if not holders:  # asks for no card, or its shares are still to be found
            return
        self._running[uid] = sum(part_of_card(holder.share, card) for card, holder in holders)
        if bound_before:
            self._chooser.taken_over()
        else:
            self._chooser.given_out(self._running[uid])
        self.observe_pending(pod)  # if another operator has placed it, or this one before it was started again

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """Record that a pod needs its cards no more. Idempotent."""
        cards = self._running.pop(pod_uid, None)
        if cards is not None:
            self._chooser.given_back(cards)

    def known_bound(self) -> set[str]:
        """Return the UIDs of the bound pods that have cards, as far as was seen."""
        return set(self._running)


logger = logging.getLogger(__name__)


def follows(follower: Follower, *methods: Callable[..., object]) -> bool:
    """Return whether a part has a method of its own in place of one of `Follower`, which does nothing."""
    return any(getattr(type(follower), method.__name__) is not method for method in methods)


NEEDED_PAUSE_S = 1.0
"""Between the end of a watch and the comparison that follows: several watches may have ended at once."""


@define(eq=False, slots=False)
class ClusterObserver(Component):
    """Takes in one object at a time, or all of them, and passes each to the parts that follow such objects."""

    followers: Sequence[Follower]
    """In the order in which they are told."""
    _inventory: InventoryKeeper
    _adopter: Adopter
    _starts: StuckKubelets
    _placer: PodPlacer
    _waiting: WaitingPods
    _members: Members

    def __attrs_post_init__(self) -> None:
        self._host_tracker = HostTracker(self._context)
        self._cards_watched = self._context.cards_watched
        self.follows_all = bool(self._formats.dialects.elsewhere)
        """Whether pods of the cluster's own scheduler count, too: where nodes do not list their cards."""
        followers = (self._host_tracker, *self.followers)
        self._of_bound = [each for each in followers if follows(each, Follower.observe_bound)]
        of_pending = Follower.observe_pending, Follower.forget_pending
        self._of_pending = [each for each in followers if follows(each, *of_pending)]
        self._of_nodes = [each for each in followers if follows(each, Follower.observe_node)]
        self._of_cards = [each for each in followers if follows(each, Follower.observe_card)]
        self._maybe_refused: set[str] = set()  # UIDs of pods that others may have refused before
        self._takes_over = False
        self._nodes_shown = EventsDuringList()  # names
        self._node_versions: dict[str, int] = {}  # name -> newest version shown, also of one gone since the last list
        self._pods_shown = EventsDuringList()  # UIDs of bound pods
        self._cards_shown = EventsDuringList()  # UUIDs
        self._wait_no_more_shown = EventsDuringList()  # UIDs of pods that are bound or gone
        self.first_cards, self.first_pods = FirstList(), FirstList()
        """The first lists of cards and of pods: what has changed since is what their watches have to show."""
        self.cards_read = False
        """Whether the cards have been read once: before, nodes say nothing."""
        self.synced = False
        """Whether everything has been read once: before, nothing can be decided."""
        self.on_compared = Listeners[[]]()
        """Called after each comparison with full lists."""

    def node(self, node: Json, gone: bool) -> None:
        """Observe a Node; before the cards are read, its own would look new, and the list of all nodes comes after."""
        if not self.cards_read:
            return
        self._nodes_shown.note(node["metadata"]["name"])
        self._take_node(node, gone)

    def _take_node(self, node: Json, gone: bool) -> None:
        with skipping_bad_objects("node", node, self._counts):
            name, version = node["metadata"]["name"], version_of(node)
            if version < self._node_versions.get(name, 0):
                return
            self._node_versions[name] = version
            if gone:
                self._forget_node(name)
            else:
                self._ledger.zones.observe(name, node["metadata"].get("labels") or {})
                for follower in self._of_nodes:
                    follower.observe_node(node)

    def _forget_node(self, name: str) -> None:
        self._ledger.zones.forget(name)
        for follower in self._of_nodes:
            follower.forget_node(name)

    def allocation(self, allocation: Json, gone: bool) -> None:
        """Observe a GPUAllocation: memory becomes what the API server has, unless it knows something newer."""
        with skipping_bad_objects("allocation", allocation, self._counts):
            self._take_card(stored_card(allocation), gone)
        self._cards_watched.note(version_of(allocation))

    def _take_card(self, stored: StoredCard, gone: bool) -> None:
        uuid = stored.card.uuid
        if gone:
            self._ledger.unload(uuid, stored.resource_version)
            self._inventory.gone(stored.card)  # in any case: a write may have found out before the watch
            return
        self._ledger.load(stored)
        self._cards_shown.note(uuid)
        if self.synced:
            self._notice(uuid)

    def _notice(self, uuid: str) -> None:
        entry = self._ledger.entry(uuid)
        if entry is not None and not entry.stored:
            self._inventory.recheck(entry.card.node_name)  # it is there after all, or comes back at this moment
        if entry is None or not entry.stored:
            return
        for follower in self._of_cards:
            follower.observe_card(entry)

    def pod(self, pod: Json, gone: bool) -> None:
        """Observe a bound pod; of another scheduler's only that it may use cards is our business."""
        self._pods_shown.note(pod["metadata"]["uid"])
        self._take_pod(pod, gone)
        if self._may_be_stranger(pod):
            with skipping_bad_objects("pod", pod, self._counts):
                self._adopter.show(pod, gone)

    def _is_ours(self, pod: Json) -> bool:
        return scheduler_of(pod) in self._settings.scheduler_names

    def _may_be_stranger(self, pod: Json) -> bool:
        """Return whether another system's device plugin could give a pod cards: it has to be told which."""
        return scheduler_of(pod) != CLUSTERS_OWN or self._is_ours(pod)

    def _trackers_of(self, pod: Json) -> Sequence[Follower]:
        return self._of_bound if self._is_ours(pod) else (self._host_tracker,)

    def _take_pod(self, pod: Json, gone: bool) -> None:
        with skipping_bad_objects("pod", pod, self._counts):
            for follower in self._trackers_of(pod):
                if gone:
                    follower.forget_bound(pod["metadata"]["uid"], pod)
                else:
                    follower.observe_bound(pod, bound_before=not self.synced)

    def any_pod(self, pod: Json, gone: bool) -> None:
        """Observe a pod, whether it waits or has a node: one that has does not wait any more.

        Before the cards are read, its own would be unknown, and the lists of all pods come after.
        """
        if not self.cards_read:
            return
        if bound_node(pod):
            self.pending_pod(pod, gone=True)
            self.pod(pod, gone)
        else:
            self.pending_pod(pod, gone)

    def pending_pod(self, pod: Json, gone: bool) -> None:
        """Observe a pod without a node; `gone` says that it has one now, or that it is no more."""
        with skipping_bad_objects("pod", pod, self._counts):
            if self._is_ours(pod) and (gone or not may_be_placed(pod)):
                self._wait_no_more(pod["metadata"]["uid"])
                self._wait_no_more_shown.note(pod["metadata"]["uid"])
            elif self._is_ours(pod):
                self._observe_pending(pod)

    def pending_listing(self) -> Listed:
        """Note who waits; return what forgets those of them that are not in the list read since."""
        before = self._maybe_refused.union(*(follower.known_pending() for follower in self._of_pending))
        return forgetting(before, self._wait_no_more)

    def _observe_pending(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if self._waiting.there(uid):
            self._maybe_refused.add(uid)
        for follower in self._of_pending:
            follower.observe_pending(pod)
        # Who takes over lets those wait, too, that were tried: who failed last may have written over a refusal.
        if was_tried(pod) and (uid in self._maybe_refused or self._takes_over):
            self._maybe_refused.discard(uid)
            self._remember(pod)

    def _wait_no_more(self, pod_uid: str) -> None:
        self._maybe_refused.discard(pod_uid)
        for follower in self._of_pending:
            follower.forget_pending(pod_uid)

    async def take_over(self) -> None:
        """Catch up with everything that may have been left undone, as an operator does that has become active."""
        self._takes_over = True
        try:
            await self.resync()
        finally:
            self._takes_over = False
        for follower in self.followers:
            follower.became_active()

    async def _list_pending(self) -> None:
        """Forget pods that no longer wait, and observe the others. What the watch shows meanwhile is newer."""
        listed, uids = self.pending_listing(), set[str]()
        with self._wait_no_more_shown.since_now() as gone:
            async for page in self._store.pending_pods(self._settings.scheduler_names):
                for pod in page:
                    if not self._is_ours(pod) or not may_be_placed(pod):
                        continue
                    uids.add(pod["metadata"]["uid"])
                    if pod["metadata"]["uid"] not in gone:
                        with skipping_bad_objects("pod", pod, self._counts):
                            self._observe_pending(pod)
                            # It may have been refused already, and the scheduler has not written it down yet.
                            if self._takes_over and not was_tried(pod):
                                self._maybe_refused.add(pod["metadata"]["uid"])
        listed(uids)

    def _remember(self, pod: Json) -> None:
        """Let a pod wait that a scheduler has refused before this operator could see it."""
        if pod["metadata"]["uid"] in self._placer.known_pending():
            return
        try:
            request = self._formats.request(pod)
        except BadInput:
            return
        if request is not None and not self._members.was_tried(pod["metadata"]["uid"]):
            self._waiting.refused(pod_identity(pod), request, created_at(pod), None)

    async def resync(self) -> None:
        """Compare memory with full lists, and correct what the watches have missed. Reads only, if nothing was."""
        await self._resync_allocations()
        if not self.synced:
            self._starts.cards_read()
        self.cards_read = True
        await self._resync_nodes()
        with self._cards_shown.since_now() as cards:
            await self._resync_pods()
        self.synced = True
        for uuid in cards:  # who holds them was not among those that were looked for
            self._notice(uuid)
        await self._list_pending()
        self.on_compared()

    async def resync_every(self, interval_s: float | None, needed: asyncio.Event) -> None:
        """Resync for ever, and soon after it is said to be needed; None: only then. After an error, soon again.

        Raises StateRolledBack.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await needed.wait()
                    await asyncio.sleep(NEEDED_PAUSE_S)
            needed.clear()
            try:
                await self.resync()
            except StateRolledBack:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it was, the next comparison may succeed
                logger.warning("the comparison with the API server failed, retrying: %r", error)
                needed.set()

    async def _resync_allocations(self) -> None:
        known = {entry.card.uuid: entry.resource_version for entry in self._ledger.entries() if entry.stored}
        version = ""
        async for page in self._store.allocations():
            version = page.version
            for allocation in page:
                with skipping_bad_objects("allocation", allocation, self._counts):
                    stored = stored_card(allocation)
                    check_age(stored, known.pop(stored.card.uuid, 0), self._ledger.entry(stored.card.uuid))
                    self._take_card(stored, gone=False)
        for uuid, resource_version in known.items():
            entry = self._ledger.entry(uuid)
            if entry is not None and self._ledger.unload(uuid, resource_version):
                self._inventory.recheck(entry.card.node_name)
        self.first_cards.read(version)

    async def _resync_nodes(self) -> None:
        """Observe all nodes, and forget others that the watch does not show meanwhile. Raises StateRolledBack."""
        missing, known = self._inventory.known_nodes() | set(self._ledger.node_names()), dict(self._node_versions)
        with self._nodes_shown.since_now() as shown:
            async for page in self._store.nodes():
                for node in page:
                    name = node["metadata"]["name"]
                    missing.discard(name)
                    if version_of(node) < known.get(name, 0):
                        raise state_rolled_back(f"Node {name}", version_of(node), known[name])
                    self._take_node(node, gone=False)
        for name in missing - shown:
            self._forget_node(name)
        names = self._inventory.known_nodes()
        self._node_versions = {name: version for name, version in self._node_versions.items() if name in names}
        self._inventory.all_seen()

    async def _resync_pods(self) -> None:
        """Observe all bound pods, and forget others. What the watch shows meanwhile is newer."""
        unlisted = {follower: set(follower.known_bound()) for follower in self._of_bound}
        names, reader, version = self._settings.scheduler_names, self._store, ""
        with self._pods_shown.since_now() as shown:
            async for page in reader.all_bound_pods() if self.follows_all else reader.bound_pods(names):
                version = page.version
                for pod in filter(bound_node, page):
                    uid = pod["metadata"]["uid"]
                    for follower in self._trackers_of(pod):
                        unlisted[follower].discard(uid)
                    if uid not in shown:
                        self._take_pod(pod, gone=False)
                    if self._may_be_stranger(pod):
                        with skipping_bad_objects("pod", pod, self._counts):
                            self._adopter.observe(pod, is_latest=uid not in shown)
        self._adopter.listed()
        for follower, uids in unlisted.items():
            for uid in uids:
                follower.forget_bound(uid, None)
        self.first_pods.read(version)
