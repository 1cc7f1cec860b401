"""The two writes of a bind, the shares into the ledger and then the Binding; when they are sent, and their failures.

The Binding carries the pod's resourceVersion, read before the API server has shown all of the shares in the ledger. So
it is refused if anybody has begun to take them back in between; release.py has the other half of this.

A Binding is sent only while kube-scheduler waits for its result. kube-scheduler counts a pod's CPU on the node from its
choice on, and forgets it when it hears that Bind has failed. A Binding that arrived after that would bring the pod to a
node where others may have its CPU by then. So no question is answered with "failed" before it is known that no Binding
is under way. What was entered into the ledger stays meanwhile: the next question for the pod goes on from there.

A pod that could not be bound several times in a row is put off: whatever is wrong with it, others go first. It gets
another node next time, if one fits. kube-scheduler does not report failures between Filter and
Bind, such as Reserve, Permit or PreBind; it shows when kube-scheduler asks for the pod again without having asked to
bind it. If it names the node again, the node is fit by its own rules, and has led nowhere. If it does not name it, it
keeps the pod off the node by itself, and nothing is remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from attrs import define

from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.formats.kubernetes.pod import bound_node, is_being_deleted, is_finished, resource_version
from gpuledger.formats.scheduler import LONGEST_BACK_OFF_S
from gpuledger.model.clock import BoundedMap, Clock, Listeners
from gpuledger.model.errors import (
    ApiError,
    BindAbandoned,
    BindFailed,
    Conflict,
    GangIncomplete,
    GpuledgerError,
    NotFound,
    QuotaExceeded,
    Unreachable,
)
from gpuledger.model.gang import Gang
from gpuledger.model.json_object import Json
from gpuledger.model.node import Dialect
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Holder, Placement, Pod
from gpuledger.placement.choose import Ranking
from gpuledger.workflows.binding.device_plugin_queue import DevicePluginQueue
from gpuledger.workflows.context import Component
from gpuledger.workflows.journal.journal import Entered
from gpuledger.workflows.quota import QuotaFence
from gpuledger.workflows.release import PodReleaser
from gpuledger.workflows.resource_claims.writes import ClaimWriter
from gpuledger.workflows.tasks import gather_all, sleep_backoff

ASKED_AGAIN_S = LONGEST_BACK_OFF_S + 2.0
"""For how long a pod that could be bound waits for the next question: kube-scheduler asks again after its back-off."""


@dataclass(slots=True, eq=False)
class _Question:
    """A Bind for which kube-scheduler waits."""

    is_connected: Callable[[], bool]
    is_over: bool = False


class OpenBindRequest:
    """A pod that is being bound: the requests that ask for it, and whether a Binding of it is in flight."""

    def __init__(self) -> None:
        self._question: _Question | None = None
        self._news = asyncio.Event()
        self._nothing_under_way = asyncio.Event()
        self._nothing_under_way.set()
        self._is_expected = True
        self.is_unanswered = False
        """A Binding was sent of which the API server has not said what has become of it."""
        self.on_question = Listeners[[]]()
        """Called when kube-scheduler has asked for the Binding."""
        self.before_sending = Listeners[[]]()
        """Called before each Binding that none without an answer came before; it raises why it must not be sent."""

    @contextmanager
    def question(self, is_connected: Callable[[], bool]) -> Iterator[None]:
        """Let Bindings be sent as long as this lasts, and `is_connected` says that a caller still listens.

        The latest question counts: kube-scheduler asks again only when it waits for the one before no more.
        """
        question = self._question = _Question(is_connected)
        self._news.set()
        self.on_question()
        try:
            yield
        finally:
            question.is_over = True

    def expect_question(self, is_expected: bool) -> None:
        """Note whether kube-scheduler would still take the node; if not, each bind that waits for a question fails."""
        self._is_expected = is_expected
        self._news.set()

    async def had_to_wait(self) -> bool:
        """Wait until a Binding may be sent; return whether that was not so at once. Raises BindAbandoned."""
        if self.is_asked():
            return False
        await self._until_asked()
        return True

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Wait until a Binding may be sent; what is done inside sends it, and finds out what has become of it.

        Raises BindAbandoned if the scheduler no longer asks. If an earlier Binding's outcome is unknown, it does not
        wait: that has to be found out before kube-scheduler gets an answer.
        """
        await self._until_asked()
        if not self.is_unanswered:
            self.before_sending()
        self._nothing_under_way.clear()
        try:
            yield
        finally:
            if not self.is_unanswered:
                self._nothing_under_way.set()

    async def until_known(self, task: asyncio.Task[None]) -> None:
        """Wait, after the last question is over, until the bind has ended or no Binding of it is under way."""
        if task.done():
            return
        known = asyncio.ensure_future(self._nothing_under_way.wait())
        try:
            await asyncio.wait({task, known}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            known.cancel()

    async def _until_asked(self) -> None:
        if self.is_asked():
            return
        try:
            async with asyncio.timeout(ASKED_AGAIN_S):
                while not self.is_asked():
                    if not self._is_expected or self.is_unanswered:
                        raise BindAbandoned("kube-scheduler no longer waits for the pod's Binding")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise BindAbandoned("kube-scheduler has not asked again for the pod's Binding") from None

    def is_asked(self) -> bool:
        """Return whether kube-scheduler waits for the Binding at this moment."""
        question = self._question
        return question is not None and not question.is_over and question.is_connected()


@dataclass(slots=True)
class Bind:
    """A bind in progress."""

    node_name: str
    permission: OpenBindRequest
    task: asyncio.Task[None]


BINDING_ATTEMPTS = 6
"""Bindings sent without success before the pod's shares are given back, though a GET shows it unbound."""

MANY_CARDS_AT_ONCE = 16
"""Pods with several cards that are entered at once. Each takes as many writes, and all of one's have to be there before
it can be bound: hundreds at once would all be late, and give back what they have."""

BINDING_TIMEOUT_S = 5.0
"""How long the API server may take for a Binding, at most. After that its outcome is read."""

KNOWN_S = 5.0
"""How long what was entered needs no other look: others of the gang are entered in the meantime."""

ENTER_TIMEOUT_S = 15.0
"""How long the API server may take to enter a share. When everything is slow, giving shares back to enter them again
would make it slower. If Bind has been answered meanwhile, the scheduler's next try goes on from there."""


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod in the state in which it was read."""

    pod: Pod
    resource_version: str
    request: PodRequest | None = None
    ranking: Ranking | None = None
    """How its node compared with others."""
    gang: Gang | None = None


@dataclass(frozen=True, slots=True)
class EnteredAhead:
    """The shares entered for a pod ahead of its Binding, while its gang gathers."""

    steps: Sequence[Entered] = ()
    known_until_s: float = float("-inf")
    """Until when, by the clock, its shares count as being there without another look at the ledger."""


NOTHING = EnteredAhead()


@define(eq=False, slots=False)
class PodBinder(Component):
    """Binds pods with their shares, or leaves nothing of them in the ledger."""

    releaser: PodReleaser
    turns: DevicePluginQueue
    _claims: ClaimWriter

    def __attrs_post_init__(self) -> None:
        self.failures = BindFailures(self._clock)
        self.binds: dict[str, Bind] = {}  # pod UID -> its bind in progress
        self._quota_fence = QuotaFence(self._context)
        self._timeout_s = min(BINDING_TIMEOUT_S, self._settings.bind_answer_s)
        self._places = asyncio.Semaphore(MANY_CARDS_AT_ONCE)

    def is_binding(self, pod_uid: str) -> bool:
        """Return whether a bind of the pod is in progress: then no other part may judge its shares."""
        return pod_uid in self.binds

    async def enter(self, pod: Pod, placement: Placement) -> EnteredAhead:
        """Enter a pod's shares, ahead of `bind`. Raises the first error when every card has answered."""
        steps = await self._enter(pod, placement, ())
        is_clear = not any(step.may_arrive_late for step in steps)
        return EnteredAhead(steps, self._clock.now_s() + KNOWN_S if is_clear else float("-inf"))

    def check(self, placement: Placement) -> None:
        """Raise BindFailed if its cards no longer take pods, or another pod may use them."""
        self.turns.check_cards(placement)

    async def give_back(self, pod: Pod, placement: Placement, entered: EnteredAhead) -> None:
        """Give back what `enter` has entered, if anything."""
        await self.releaser.give_back(pod, placement.shares, _never_sent(entered.steps))

    async def bind(
        self, seen: SeenPod, placement: Placement, permission: OpenBindRequest, entered: EnteredAhead = NOTHING
    ) -> None:
        """Bind a pod, when it is its turn and its Binding may be sent. When it can't be done, give its shares back.

        `entered` says that they are in the ledger already. Raises why: BindFailed, ShareRefused, or what the API server
        says.
        """
        had_its_turn = False
        try:
            dialect = self.turns.dialect(placement.node_name) if placement.shares else Dialect.NATIVE
            async with self.turns.turn(seen.pod, placement, dialect):
                had_its_turn = True
                await self._bind_now(seen, placement, dialect, permission, entered)
        except Exception:
            if not had_its_turn:  # shares that were entered before, by an earlier attempt, too
                await self.releaser.give_back(seen.pod, placement.shares, _never_sent(entered.steps))
            raise

    def _place(self, placement: Placement) -> AbstractAsyncContextManager[object]:
        return self._places if len(placement.shares) > 1 else nullcontext()

    async def _bind_now(
        self,
        seen: SeenPod,
        placement: Placement,
        dialect: Dialect,
        permission: OpenBindRequest,
        before: EnteredAhead,
    ) -> None:
        """Bind a pod or give its shares back, before its turn ends: until then, no late Binding can be accepted."""
        annotations = self.turns.annotations(placement, seen.request, dialect)
        unbound = _never_sent(before.steps)
        try:
            await self._enter_and_send(seen, placement, annotations, unbound, permission, before)
        except Exception:
            await self.releaser.give_back(seen.pod, placement.shares, unbound)
            if permission.is_unanswered:  # behind the fence that has become clear
                found = await self._pod_now(seen.pod)
                if found is not None and _is_bound_by_us(found, placement, annotations):
                    return
            raise

    async def _enter_and_send(
        self,
        seen: SeenPod,
        placement: Placement,
        annotations: dict[str, str],
        unbound: set[str],
        permission: OpenBindRequest,
        before: EnteredAhead,
    ) -> None:
        """Enter the shares and bind the pod, until the API server has clearly said yes or no.

        Each Binding is sent after the API server has shown that the shares are in the ledger, and that after the pod's
        resourceVersion was read; and only as long as these cards take pods, and no other pod may use them.
        `unbound` is kept up to date: the names of the attempts that have not bound the pod. These took over from none
        else, and no Binding is without an answer.
        """
        pod, version = seen.pod, seen.resource_version
        entered = list(before.steps)
        is_known = self._clock.now_s() < before.known_until_s
        for attempt in range(BINDING_ATTEMPTS):
            was_long = True
            while was_long:  # so long that etcd may have been put back: the pod as it was, and without its shares
                if not is_known:
                    entered = await self._enter(pod, placement, entered)
                is_known = False
                unbound.update([step.attempt for step in entered if step.took_over <= unbound])
                was_cut_off = len(entered) > 1 and any(step.may_arrive_late for step in entered)
                was_long = await permission.had_to_wait() or was_cut_off
            if seen.request is not None and seen.request.brings_claims:
                await self._claims.allocate(pod, seen.request, placement)
            async with permission.sending():
                self.turns.check_cards(placement)
                try:
                    await self._store.bind_pod(pod, version, placement.node_name, annotations, self._timeout_s)
                    return
                except (Conflict, NotFound, Unreachable) as error:
                    failure = error
                if isinstance(failure, Unreachable):
                    permission.is_unanswered = True
                    unbound.clear()
                found = await self._pod_now(pod)
                if found is None or bound_node(found) or is_being_deleted(found):
                    if found is not None and _is_bound_by_us(found, placement, annotations):
                        if is_finished(found):  # that may have been shown before its shares were entered once more
                            await self.releaser.give_back(pod, placement.shares, unbound)
                        return
                    raise failure
            changed = resource_version(found) != version
            if attempt == BINDING_ATTEMPTS - 1 or not (changed or isinstance(failure, Unreachable)):
                raise failure
            version = resource_version(found)
            await sleep_backoff(attempt, failure)

    async def _enter(self, pod: Pod, placement: Placement, before: Sequence[Entered]) -> list[Entered]:
        """Enter the shares on all cards at once; where they were entered `before`, a look at the card may do.

        Raises the first error when every card has answered, and QuotaExceeded where another operator was quicker.
        """
        holders = [Holder(pod, share) for share in placement.shares]
        async with self._place(placement):
            if before:
                again = zip(holders, before, strict=True)
                entered = await gather_all([self._enter_again(holder, each) for holder, each in again])
            else:
                entered = await gather_all([self._journal.add(holder, ENTER_TIMEOUT_S) for holder in holders])
        if [each.attempt for each in entered] != [each.attempt for each in before]:
            await self._quota_fence.check(pod, placement)
        return entered

    async def _enter_again(self, holder: Holder, before: Entered) -> Entered:
        if not before.may_arrive_late and await self._journal.still_has(replace(holder, attempt=before.attempt)):
            # It relies on itself: if a Binding without an answer may have bound the pod, it still may have.
            return Entered(before.attempt, took_over=frozenset({before.attempt}))
        return await self._journal.add(holder, ENTER_TIMEOUT_S)

    async def _pod_now(self, pod: Pod) -> Json | None:
        """Return the pod as it is now, None if it is gone. Asks until it knows."""
        attempt = 0
        while True:
            try:
                return await self._store.pod_now(pod)
            except ApiError as error:
                await sleep_backoff(attempt, error)
                attempt += 1


def _never_sent(entered: Sequence[Entered]) -> set[str]:
    """Return the attempts among these with which no Binding can have been sent: they took over from none."""
    return {step.attempt for step in entered if not step.took_over}


def _is_bound_by_us(found: Json, placement: Placement, annotations: Mapping[str, str]) -> bool:
    """Return whether the Binding that the API server has accepted is this one, and not another operator's."""
    stored = found["metadata"].get("annotations") or {}
    # The others change: another system's device plugin may have found the pod already.
    mine = stored.get(DEVICES_ANNOTATION) == annotations[DEVICES_ANNOTATION]
    return bound_node(found) == placement.node_name and mine


FAILURES_FREE = 3
"""Failed binds in a row before a pod is put off: kube-scheduler's own back-off, of 10 s at most, comes first."""

FIRST_PUT_OFF_S, LONGEST_PUT_OFF_S = 20.0, 300.0

ANSWER_PAUSE_S = 1.0
"""Pause between two answers that a pod is not bound. kube-scheduler's own back-off is as long; but where it tries
groups as a whole it has none: Kubernetes 1.37 was seen to try a member whose Bind is refused 140 times a second."""

OVERLOADED = (0, 429, 503, 504)
"""Answers (0 is none) that say something of the API server and nothing of the pod."""

NOT_OF_THE_NODE = (NotFound, Conflict, BindAbandoned, GangIncomplete, QuotaExceeded)
"""Errors that say nothing of the node."""

NODES_KEPT = 64
"""How many nodes are remembered for a pod: those on which its binds failed last."""


@dataclass(slots=True)
class _Failures:
    number: int = 0
    put_off_until_s: float = 0.0
    offered: tuple[str, ...] = ()
    """Names of the nodes in the last answer to a Filter, as long as no Bind has followed."""
    answered_s: float | None = None
    """When kube-scheduler was last told that the pod is not bound."""
    nodes: BoundedMap[str, None] = field(default_factory=lambda: BoundedMap(NODES_KEPT))
    """Names of the nodes that led nowhere."""


class BindFailures:
    """Counts them. Of a pod that was bound, or is gone, nothing is remembered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}  # pod UID -> its failed binds

    def pod_uids(self) -> set[str]:
        """Return the UIDs of the pods of which something is remembered."""
        return set(self._failures)

    def forget(self, pod_uid: str) -> None:
        """Record that a pod was bound, or is gone."""
        self._failures.pop(pod_uid, None)

    async def pause_before_answer(self, pod_uid: str) -> None:
        """Wait until kube-scheduler may be told again that a pod is not bound. The first answer does not wait."""
        failures = self._failures.setdefault(pod_uid, _Failures())
        if failures.answered_s is not None:
            await asyncio.sleep(max(0.0, failures.answered_s + ANSWER_PAUSE_S - self._clock.now_s()))
        failures.answered_s = self._clock.now_s()

    def offered(self, pod_uid: str, node_names: Iterable[str]) -> None:
        """Note which nodes kube-scheduler was offered for a pod."""
        self._failures.setdefault(pod_uid, _Failures()).offered = tuple(node_names)

    def bind_begins(self, pod_uid: str) -> None:
        """Record that kube-scheduler asks to bind the pod to a node that Filter offered."""
        failures = self._failures.get(pod_uid)
        if failures is not None:
            failures.offered = ()

    def led_nowhere(self, pod_uid: str, node_names: Container[str]) -> Collection[str]:
        """Return the nodes that a pod had better not get again, now that kube-scheduler asks with these names."""
        failures = self._failures.get(pod_uid)
        if failures is None:
            return ()
        for name in failures.offered:
            if name in node_names:
                failures.nodes.note(name, None)
        failures.offered = ()
        return failures.nodes

    def avoided(self, pod_uid: str) -> Collection[str]:
        """Return the nodes that have led nowhere, as far as is known."""
        failures = self._failures.get(pod_uid)
        return failures.nodes if failures else ()

    def start_over(self, pod_uid: str) -> None:
        """Record that a pod gets one of its failed nodes after all, as no other fits: all may be tried again."""
        failures = self._failures.get(pod_uid)
        if failures is not None:
            failures.nodes = BoundedMap(NODES_KEPT)

    def note(self, pod_uid: str, node_name: str, error: BaseException) -> None:
        """Record why a bind has failed. Errors that are neither the pod's nor the node's fault do not count."""
        if isinstance(error, ApiError) and error.status in OVERLOADED:
            return
        if isinstance(error, GpuledgerError) and not isinstance(error, NOT_OF_THE_NODE):
            self._failures.setdefault(pod_uid, _Failures()).nodes.note(node_name, None)
        if isinstance(error, ApiError) and not isinstance(error, NotFound):
            self._count(self._failures.setdefault(pod_uid, _Failures()))

    def _count(self, failures: _Failures) -> None:
        failures.number += 1
        if failures.number > FAILURES_FREE:
            put_off_s = min(LONGEST_PUT_OFF_S, FIRST_PUT_OFF_S * 2 ** (failures.number - FAILURES_FREE - 1))
            failures.put_off_until_s = self._clock.now_s() + put_off_s

    def put_off_s(self, pod_uid: str) -> float:
        """Return for how many seconds the pod is still put off."""
        failures = self._failures.get(pod_uid)
        return max(0.0, failures.put_off_until_s - self._clock.now_s()) if failures else 0.0

    def check(self, pod: Pod) -> None:
        """Raise BindFailed if a pod is put off."""
        if self.put_off_s(pod.uid):
            raise BindFailed(f"binding pod {pod} failed several times in a row; the operator retries after a pause")
