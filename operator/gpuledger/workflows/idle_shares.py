"""Follows which shares are idle, by the agents of their nodes, and does what is to become of them.

An agent's word is evidence of use, and no right: it concerns the pods on its own node only, and before a pod is evicted
the Node is read once more. A pod is idle if all of its shares are. First its namespace is told; after a grace, by the
policy, the pod yields: any pod that waits may have it evicted, by preemption as it is; or it is evicted in any case.
Pods that no controller would make anew stay, and those of a gang leave together, when all of them are idle.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from attrs import define

from gpuledger.formats.idle import NO_WORD, POLICY_ANNOTATION, Idleness, IdleWord, read_idle, wants_to_keep
from gpuledger.formats.kubernetes.pod import controller_uid
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import ApiError, BadInput, Denied, EventReason, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder
from gpuledger.workflows.card_evictions import PAUSE_S, Cause, Evictions
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import AgentChanged, PodYields
from gpuledger.workflows.inventory import AgentPods
from gpuledger.workflows.tasks import KeyedWorker

logger = logging.getLogger(__name__)

REPORT, YIELD, EVICT = "report", "yield", "evict"

POLICY_KEPT_S: Final = 30.0
"""For so long a Namespace's word is good."""

RECHECK_S: Final = 300.0
"""Until a pod that stays idle is looked at again: its own word or its namespace's may be another by then."""

NAMESPACES_KEPT: Final = 4_096

AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class IdleShare:
    """A share that is idle now."""

    card: Card
    holder: Holder
    since: datetime


@define(eq=False, slots=False)
class IdleShares(Component):
    """What agents say, and what follows from that."""

    _agents: AgentPods
    _evictions: Evictions
    _may_write: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._of_node: dict[str, IdleWord] = {}
        self._bad: dict[str, str] = {}  # node -> what is wrong with its annotation
        self._told: dict[str, datetime] = {}  # pod UID -> since when it was idle when its namespace was told
        self._timers: dict[str, asyncio.TimerHandle] = {}  # pod UID -> until it is looked at again
        self._policies: BoundedMap[str, tuple[float, str]] = BoundedMap(NAMESPACES_KEPT)
        self._no_right = False
        self.worker = KeyedWorker(self._look, AT_ONCE, self._may_write)
        self._journal.tell_idle_by(self.idle_s)
        self._events.on(AgentChanged, lambda event: self._agent_has_changed(event.node_name))

    # What is known.

    def idle_s(self, pod_uid: str, uuid: str, now: datetime) -> int:
        """Return for how many seconds a share has been idle until a moment, all together."""
        found = self._said(pod_uid, uuid)
        if found is None:
            return 0
        return found.total_s(now) if self._idleness(pod_uid, uuid) else found.before_s

    def idle_now(self) -> Iterator[IdleShare]:
        """Yield the shares that are idle now."""
        for said in list(self._of_node.values()):
            for (uid, uuid), each in said.shares.items():
                entry = self._ledger.entry(uuid) if each.since else None
                holder = entry.holders.get(uid) if entry else None
                if entry is not None and holder is not None and each.since and self._idleness(uid, uuid) is each:
                    yield IdleShare(entry.card, holder, each.since)

    def _said(self, pod_uid: str, uuid: str) -> Idleness | None:
        """Return what the annotation of a card's own node says of a share."""
        entry = self._ledger.entry(uuid)
        return self._of_node.get(entry.card.node_name, NO_WORD).shares.get((pod_uid, uuid)) if entry else None

    def _idleness(self, pod_uid: str, uuid: str) -> Idleness | None:
        """Return the same, if the node's agent is the one that has said so."""
        entry = self._ledger.entry(uuid)
        return self._said(pod_uid, uuid) if entry and self._is_of_agent(entry.card.node_name) else None

    def _is_of_agent(self, node_name: str) -> bool:
        return self._believes(self._of_node.get(node_name, NO_WORD), node_name)

    def _believes(self, said: IdleWord, node_name: str) -> bool:
        """Return whether no other agent than the one that has said that is there."""
        agent = self._agents.pod_of(node_name)
        return agent is None or agent.uid == said.agent_uid

    def _pod_since(self, pod_uid: str) -> datetime | None:
        """Return since when all shares of a pod are idle; None if one is not, or it has none."""
        found = [self._idleness(pod_uid, card.uuid) for card, _ in self._ledger.holders.of(pod_uid)]
        since = [each.since for each in found if each is not None and each.since is not None]
        return max(since) if since and len(since) == len(found) else None

    # What is followed.

    def observe_node(self, node: Json) -> None:
        """See Follower."""
        name = node["metadata"]["name"]
        before = self._of_node.get(name, NO_WORD)
        try:
            now = read_idle(node)
            self._bad.pop(name, None)
        except BadInput as error:
            now = NO_WORD
            if self._bad.get(name) != str(error):
                self._bad[name] = str(error)
                self._counts.bad_input.labels("node").inc()
                logger.error("node %s: %s; none of its shares counts as idle", name, error)
        if now == before:
            return
        if now.shares:
            self._of_node[name] = now
        else:
            self._of_node.pop(name, None)
        is_another = now.agent_uid != before.agent_uid
        keys = now.shares.keys() | before.shares.keys()
        for uid in {key[0] for key in keys if is_another or now.shares.get(key) != before.shares.get(key)}:
            self._has_changed(uid)

    def forget_node(self, node_name: str) -> None:
        """See Follower."""
        for uid in {uid for uid, _ in self._of_node.pop(node_name, NO_WORD).shares}:
            self._has_changed(uid)

    def _agent_has_changed(self, node_name: str) -> None:
        for uid in {uid for uid, _ in self._of_node.get(node_name, NO_WORD).shares}:
            self._has_changed(uid)

    def observe_card(self, entry: CardEntry) -> None:
        """See Follower."""
        if entry.card.node_name in self._of_node:
            for uid in entry.holders:
                if uid not in self._timers and self._pod_since(uid) is not None:
                    self._has_changed(uid)

    def became_active(self) -> None:
        """See Follower."""
        for uid in {uid for said in self._of_node.values() for uid, _ in said.shares}:
            self._has_changed(uid)

    async def stop(self) -> None:
        """See Follower."""
        await self.worker.stop()

    def _has_changed(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
        since = self._pod_since(uid)
        if since is None:
            self._told.pop(uid, None)
            self._let_yield(uid, yields=False)
        elif self._settings.idle_after_s:
            self.worker.mark(uid)

    def _look_again(self, uid: str, wait_s: float) -> None:
        if wait_s < math.inf:
            self._timers[uid] = self._tasks.after(wait_s + 0.1, self._has_changed, uid)

    # What is done.

    async def _look(self, uid: str) -> None:
        """Do what is due with an idle pod. Raises ApiError."""
        now, since = self._store.server_now(), self._pod_since(uid)
        if now is None or since is None:
            return
        idle_s = (now - since).total_seconds()
        if idle_s < self._settings.idle_after_s:
            self._look_again(uid, self._settings.idle_after_s - idle_s)
            return
        card, holder = self._ledger.holders.of(uid)[0]
        if not self._evictions.may_leave(holder):  # it leaves already, or was not seen bound yet
            self._look_again(uid, RECHECK_S)
            return
        policy = await self._policy_for(holder)
        self._tell(card, holder, since, idle_s, policy)
        left_s = self._settings.idle_after_s + self._settings.idle_grace_s - idle_s
        is_over = policy != REPORT and left_s <= 0
        self._let_yield(uid, is_over and policy == YIELD)
        if is_over and policy == EVICT:
            self._look_again(uid, RECHECK_S if await self._evict(card, holder, since) else PAUSE_S)
        else:
            self._look_again(uid, min(left_s, RECHECK_S) if left_s > 0 else RECHECK_S)

    def _let_yield(self, uid: str, yields: bool) -> None:
        """Note whether a pod leaves its cards for any other that waits."""
        yielding = self._ledger.holders.yielding
        if yields and uid not in yielding:
            yielding.add(uid)
            self._events.tell(PodYields())
            self._context.room_has_changed.set()
        elif not yields:
            yielding.discard(uid)

    async def _policy_for(self, holder: Holder) -> str:
        """Return what becomes of a pod: by its own word, its controller, its namespace, and the setting."""
        policy = await self._policy_of(holder.pod.namespace)
        if policy == REPORT:
            return policy
        pod = await self._store.pod_now(holder.pod)
        keeps = pod is not None and wants_to_keep(pod) and self._settings.idle_keep_allowed
        return REPORT if pod is None or keeps or not controller_uid(pod) else policy

    async def _policy_of(self, namespace: str) -> str:
        known = self._policies.get(namespace)
        if known is not None and self._clock.now_s() < known[0] + POLICY_KEPT_S:
            return known[1]
        policy = self._settings.idle_policy
        try:
            found = await self._store.namespace(namespace)
        except NotFound:
            return REPORT
        except Denied as error:
            if not self._no_right:
                self._no_right = True
                logger.error("policies of namespaces for idle shares can't be read, the setting holds: %s", error)
        else:
            said = (found["metadata"].get("annotations") or {}).get(POLICY_ANNOTATION, policy)
            if said in (REPORT, YIELD, EVICT):
                policy = said
            else:
                policy = REPORT
                logger.error(
                    "namespace %s: annotation %s is %r, which is none of report, yield, evict; it is taken for report",
                    *(namespace, POLICY_ANNOTATION, str(said)[:64]),
                )
        self._policies.note(namespace, (self._clock.now_s(), policy))
        return policy

    def _tell(self, card: Card, holder: Holder, since: datetime, idle_s: float, policy: str) -> None:
        uid = holder.pod.uid
        if self._told.get(uid) == since:
            return
        self._told[uid] = since
        after_s = max(0.0, self._settings.idle_after_s + self._settings.idle_grace_s - idle_s)
        follows = {
            REPORT: "others can't use what it holds",
            YIELD: f"in {after_s / 60:,.0f} min any pod that waits may take its place, unless it uses them before",
            EVICT: f"in {after_s / 60:,.0f} min it is evicted, unless it uses them before",
        }[policy]
        sentence = f"none of its shares of GPUs was used for {idle_s / 60:,.0f} min: {follows}"
        self._event_recorder.post_pod_event_once(holder.pod, EventReason.IDLE, sentence, since.isoformat())
        logger.info("pod %s, card %s of node %s: %s", holder.pod, card.uuid, card.node_name, sentence)

    async def _evict(self, card: Card, holder: Holder, since: datetime) -> bool:
        """Evict an idle pod, with its gang if that is idle, too; return whether that is done. Raises ApiError."""
        uid = holder.pod.uid
        if not await self._is_confirmed(holder):
            return False
        mates = self._evictions.gang_of(uid)
        cause = Cause(
            card=card,
            why=f"idle since {since:%Y-%m-%dT%H:%M:%SZ}, by its node's agent",
            state="was not used for too long",
            evicted=EventReason.EVICTED_FOR_IDLENESS,
            held=EventReason.STAYS_IDLE,
            count=self._counts.idle_evictions,
        )
        if any(self._pod_since(mate.uid) is None for mate in mates):
            self._evictions.tell_why_it_stays(cause, holder.pod, "others of its gang use their cards")
            return False
        return await self._evictions.evict(cause, [holder])

    async def _is_confirmed(self, holder: Holder) -> bool:
        """Return whether the nodes' agents say now that all shares of a pod are idle."""
        for card, _ in self._ledger.holders.of(holder.pod.uid):
            if self._ledger.offer(card.node_name) is None:  # no agent answers there
                return False
            try:
                word = read_idle(await self._store.node(card.node_name))
            except (ApiError, BadInput) as error:
                logger.info("node %s can't be read now: %s", card.node_name, error)
                return False
            said = word.shares.get((holder.pod.uid, card.uuid))
            if said is None or said.since is None or not self._believes(word, card.node_name):
                return False
        return True
