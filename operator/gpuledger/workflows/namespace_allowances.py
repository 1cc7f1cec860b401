"""What namespaces may cost: users write what is searched for, and how long that takes.

*Questions* that cost much give way to those of other namespaces. kube-scheduler asks for one pod after the other, those
of equal priority in the order in which they came, whoever's they are. A hundred pods of eight containers, each
different, are a hundred searches of a tenth of a second on 200 nodes; pods behind them wait for all. So a namespace
whose questions have held the operator for long lately is told to ask again while pods of others wait that
kube-scheduler has not asked about yet. That answer costs nothing; and with time a namespace may have more, so that it
always goes on, however many others come.

*Selectors* of a namespace's claims may cost so much at once, and with time more. A namespace that has used it up waits,
and is told so; the others do not notice. Nothing is counted by names that users are free to choose.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Generator
from typing import TypeVar

from gpuledger.formats.kubernetes.other import condition_of
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.model.clock import Clock
from gpuledger.model.errors import BadInput, WorkLimitExceeded
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.share import Pod
from gpuledger.workflows.context import Follower
from gpuledger.workflows.events import Bus, SelectorsAllowed
from gpuledger.workflows.tasks import Step

Answer = TypeVar("Answer")

CHEAP_S = 0.005
"""Work for a question that is always allowed. A pod like earlier ones takes 1 or 2 ms: however many come, they never
give way, as an answer and kube-scheduler's writes about it take longer than that."""

AT_ONCE_S = 0.5
"""How long a namespace's questions may take beyond that before they give way."""

SHARE = 0.25
"""Of the time, that a namespace may go on to take then."""


class CostlyQuestions(Follower):
    """Keeps the recent cost of each namespace's questions, and the pods that kube-scheduler has yet to ask about."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Namespace -> when what it has taken is forgotten, by the event loop's time.
        self._ends_s: dict[str, float] = {}
        self._unasked: defaultdict[str, dict[str, int]] = defaultdict(dict)  # namespace -> UID of a pod -> its priority
        self._namespaces: dict[str, str] = {}  # UID of each of these pods -> its namespace

    def observe_pending(self, pod: JsonMapping) -> None:
        """See Follower."""
        known = pod_identity(pod)
        if condition_of(pod, "PodScheduled") is not None:
            # kube-scheduler has looked at it; of one with a gate, the API server says so.
            self.forget_pending(known.uid)
        else:
            self._unasked[known.namespace][known.uid] = known.priority
            self._namespaces[known.uid] = known.namespace

    def forget_pending(self, pod_uid: str) -> None:
        """See Follower."""
        namespace = self._namespaces.pop(pod_uid, None)
        if namespace is not None:
            del self._unasked[namespace][pod_uid]
            if not self._unasked[namespace]:
                del self._unasked[namespace]

    def known_pending(self) -> set[str]:
        """See Follower."""
        return set(self._namespaces)

    def answered(
        self, asked: JsonMapping, is_binding: Callable[[str], bool], steps: Generator[Step, None, Answer]
    ) -> Generator[Step, None, Answer]:
        """Take the steps that answer a question about a pod, and record their cost.

        Raises WorkLimitExceeded if other pods go first. Never for a pod that is being bound, whose answer is known.
        """
        try:
            pod = pod_identity(asked)
        except BadInput:  # the answer says so
            return (yield from steps)
        self.forget_pending(pod.uid)
        if self._is_over(pod.namespace) and not is_binding(pod.uid) and self._others_wait(pod):
            raise WorkLimitExceeded(
                f"the questions about pods of namespace {pod.namespace} have taken long, and pods of other namespaces "
                "wait that were not asked about yet: these go first"
            )
        return (yield from self._measured(pod.namespace, steps))

    def _measured(self, namespace: str, steps: Generator[Step, None, Answer]) -> Generator[Step, None, Answer]:
        spent_s = 0.0
        try:
            while True:
                begin_s = self._clock.work_s()
                try:
                    step = next(steps)
                except StopIteration as ended:
                    answer: Answer = ended.value
                    return answer
                finally:
                    spent_s += self._clock.work_s() - begin_s
                yield step
        finally:
            self._spend(namespace, spent_s - CHEAP_S)

    def _spend(self, namespace: str, beyond_s: float) -> None:
        if beyond_s > 0:
            now_s = self._clock.now_s()
            if len(self._ends_s) > len(self._unasked):  # else they are few enough to stay
                self._ends_s = {name: end_s for name, end_s in self._ends_s.items() if end_s > now_s}
            self._ends_s[namespace] = max(now_s, self._ends_s.get(namespace, now_s)) + beyond_s / SHARE

    def _is_over(self, namespace: str) -> bool:
        end_s = self._ends_s.get(namespace)
        return end_s is not None and end_s > self._clock.now_s() + AT_ONCE_S / SHARE

    def _others_wait(self, pod: Pod) -> bool:
        """Return whether a pod that does not come after this one is to be asked about, of a namespace that may ask."""
        return any(
            namespace != pod.namespace
            and not self._is_over(namespace)
            and any(priority >= pod.priority for priority in pods.values())
            for namespace, pods in self._unasked.items()
        )


MOST_STEPS = 500_000
"""Of an account that was not used for a while: half a second of work at most."""

STEPS_PER_S = 100_000
"""By which it grows again: a tenth of the event loop."""

PAUSE_STEPS = STEPS_PER_S
"""A namespace that has used up its account waits until it has so many steps again."""

TURN_STEPS = 10_000
"""In one turn of the event loop, some 10 ms, beside what is begun within them."""

TURN_PAUSE_S = 0.05
"""After which those are looked at again that had no turn."""

ACCOUNTS_KEPT = 1024
"""Beyond these, accounts are dropped of which nothing is used."""


class SelectorAccount:
    """The account of one namespace: see Payer. Steps are those of gpuledger.formats.resource_claims.cel.evaluation."""

    def __init__(self, namespace: str, clock: Clock, events: Bus) -> None:
        self.namespace = namespace
        self.paid = 0
        self.skipped = 0
        self._clock, self._events = clock, events
        self._left, self._counted_s = float(MOST_STEPS), clock.now_s()
        self._waits_until_s = 0.0
        self._of_turn, self._in_turn = 0, False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_spent(self) -> bool:
        """See Payer."""
        return self._clock.now_s() < self._waits_until_s

    @property
    def is_full(self) -> bool:
        """Return whether nothing is used."""
        self._refill()
        return self._left >= MOST_STEPS

    def may_go_on(self) -> bool:
        """See Payer. Where that is no, `SelectorsAllowed` says when it is worth asking again."""
        if not self.is_spent and self._of_turn < TURN_STEPS:
            return True
        self.skipped += 1
        loop = _loop()
        if loop is not None and self._timer is None:
            pause_s = max(self._waits_until_s - self._clock.now_s(), TURN_PAUSE_S)
            self._timer = loop.call_later(pause_s, self._is_worth_asking)
        return False

    def pay(self, steps: int) -> None:
        """See Payer."""
        self._refill()
        self.paid += steps
        self._left -= steps
        if self._left <= 0:
            self._waits_until_s = self._counted_s + (PAUSE_STEPS - self._left) / STEPS_PER_S
        loop = _loop()
        if loop is not None:  # a thread keeps no event loop waiting
            self._of_turn += steps
            if not self._in_turn:
                self._in_turn = True
                loop.call_soon(self._turn_ends)

    def why_not(self) -> str:
        """See Payer."""
        return (
            f"the selectors of namespace {self.namespace} take long to evaluate, and wait for their turn: "
            "write simpler ones, or fewer different ones"
        )

    def _refill(self) -> None:
        now_s = self._clock.now_s()
        self._left = min(self._left + (now_s - self._counted_s) * STEPS_PER_S, float(MOST_STEPS))
        self._counted_s = now_s

    def _turn_ends(self) -> None:
        self._of_turn, self._in_turn = 0, False

    def _is_worth_asking(self) -> None:
        self._timer = None
        self._events.tell(SelectorsAllowed(self.namespace, self))


class SelectorAccounts:
    """The accounts of all namespaces whose pods bring selectors."""

    def __init__(self, clock: Clock, events: Bus) -> None:
        self._clock, self._events = clock, events
        self._accounts: dict[str, SelectorAccount] = {}  # by namespace

    def of(self, namespace: str) -> SelectorAccount:
        """Return the account of a namespace."""
        account = self._accounts.get(namespace)
        if account is None:
            if len(self._accounts) >= ACCOUNTS_KEPT:
                self._accounts = {name: each for name, each in self._accounts.items() if not each.is_full}
            account = self._accounts[namespace] = SelectorAccount(namespace, self._clock, self._events)
        return account


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
