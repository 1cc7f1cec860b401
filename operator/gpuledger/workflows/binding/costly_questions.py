"""Namespaces whose questions cost much give way to others: users write what is searched for, and how long that takes.

kube-scheduler asks for one pod after the other, those of equal priority in the order in which they came, whoever's they
are. A hundred pods of eight containers, each different, are a hundred searches of a tenth of a second on 200 nodes;
who comes behind them waits for all. So a namespace whose questions have held the operator for long lately is told to
ask again while pods of others wait that kube-scheduler has not asked about yet. That answer costs nothing; and with
time a namespace may have more, so that it always goes on, however many others come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from typing import TypeVar

from gpuledger.formats.kubernetes.other import condition_of
from gpuledger.formats.kubernetes.pod import is_being_deleted, pod_identity
from gpuledger.model.clock import Clock
from gpuledger.model.errors import BadInput, WorkLimitExceeded
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.share import Pod
from gpuledger.workflows.tasks import Step

Answer = TypeVar("Answer")

CHEAP_S = 0.005
"""Work for a question that is always allowed. A pod like earlier ones takes 1 or 2 ms: however many come, they never
give way, as an answer and kube-scheduler's writes about it take longer than that."""

AT_ONCE_S = 0.5
"""How long a namespace's questions may take beyond that before they give way."""

SHARE = 0.25
"""Of the time, that a namespace may go on to take then."""


class CostlyQuestions:
    """Keeps the recent cost of each namespace's questions, and the pods that kube-scheduler has yet to ask about."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Namespace -> when what it has taken is forgotten, by the event loop's time.
        self._ends_s: dict[str, float] = {}
        self._unasked: defaultdict[str, dict[str, int]] = defaultdict(dict)  # namespace -> UID of a pod -> its priority
        self._namespaces: dict[str, str] = {}  # UID of each of these pods -> its namespace

    def observe_pending(self, pod: JsonMapping) -> None:
        """See PendingPodTracker."""
        known = pod_identity(pod)
        if condition_of(pod, "PodScheduled") is not None or is_being_deleted(pod):
            # kube-scheduler has looked at it; of one with a gate, the API server says so.
            self.forget_pending(known.uid)
        else:
            self._unasked[known.namespace][known.uid] = known.priority
            self._namespaces[known.uid] = known.namespace

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        namespace = self._namespaces.pop(pod_uid, None)
        if namespace is not None:
            del self._unasked[namespace][pod_uid]
            if not self._unasked[namespace]:
                del self._unasked[namespace]

    def known_pending(self) -> set[str]:
        """See PendingPodTracker."""
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
