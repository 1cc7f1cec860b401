"""When shares end of pods that are gone, or called failed, and whose kubelet has not reported their end.

Their processes may still be on the cards. The node's agent can report them. Where it has not, the shares stay for as
long as the pod may take to end and a while longer: a kubelet that was cut off, and finds the pod missing, gives it that
time, too. All that is counted from when this process first saw such a share. The deadline in the ledger is for people:
it comes from another machine's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from math import inf
from typing import Protocol

from gpuledger.formats.kubernetes.annotations import read_ends
from gpuledger.model.card import Card
from gpuledger.model.clock import Clock, Listeners
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder
from gpuledger.workflows.inventory.inventory import AgentPods

logger = logging.getLogger(__name__)


class EndReport(Enum):
    """The state of a pod that has ended, the worst last."""

    ENDED = auto()
    """Nothing of it runs."""
    NO_AGENT = auto()
    """No agent will report it: its node is gone, or has no agent that does."""
    NOT_REPORTED = auto()
    """The node's agent answers, and has not spoken of it."""
    AGENT_AWAY = auto()
    """The node's agent is not Ready, so what it has not said means nothing."""
    RUNS = auto()
    """Processes or containers of it are left."""


def end_report_of(reported: Mapping[str, bool] | None, pod_uid: str) -> EndReport:
    """Return the report on a pod in a node's annotation; None means that the node has none."""
    if reported is None:
        return EndReport.NO_AGENT
    runs = reported.get(pod_uid)
    return EndReport.NOT_REPORTED if runs is None else EndReport.RUNS if runs else EndReport.ENDED


class TerminationReports:
    """Remembers it by node. A node's word counts for the shares on its own cards only."""

    def __init__(self, agents: AgentPods) -> None:
        self._agents = agents
        self._reported: dict[str, dict[str, bool]] = {}  # node name -> UID of a pod -> whether anything of it runs
        self.on_news = Listeners[[str]]()
        """Called with the name of a node of which another word may be known now."""

    def observe(self, node: Json) -> None:
        """Observe a Node as it is now."""
        name = node["metadata"]["name"]
        before = self._reported.get(name)
        try:
            reported = read_ends(node)
        except BadInput as error:  # its agent corrects it
            logger.warning("node %s: %s", name, error)
            return
        if reported is None:
            self._reported.pop(name, None)
        else:
            self._reported[name] = reported
        if reported != before:
            self.on_news(name)

    def forget(self, node_name: str) -> None:
        """Record that a node is gone."""
        if self._reported.pop(node_name, None) is not None:
            self.on_news(node_name)

    def end_report(self, node_name: str, pod_uid: str) -> EndReport:
        """Return the report on a pod that had a share on a node."""
        report = end_report_of(self._reported.get(node_name), pod_uid)
        is_away = report is EndReport.NOT_REPORTED and self._agents.not_ready(node_name)
        return EndReport.AGENT_AWAY if is_away else report

    def agent_has_changed(self, node_name: str) -> None:
        """Record that a node's agent has become Ready, or is not any more."""
        if node_name in self._reported:
            self.on_news(node_name)


Held = Sequence[tuple[Card, Holder]]

SPOKEN_WITHIN_S = 15.0
"""How long at least an agent has to say that something of a pod runs. It looks for five seconds before it does."""

DEADLINE_ROUNDING_S = 1.0
"""A deadline in the ledger has whole seconds."""


class Ends(Protocol):
    """Reports on the processes that are left of a pod on its node."""

    def end_report(self, node_name: str, pod_uid: str) -> EndReport:
        """Return the report on a pod that had a share on a node."""


@dataclass(frozen=True, slots=True)
class ReleaseTimes:
    """How long shares stay where no agent speaks."""

    delay_s: float
    """Beyond the pod's own time to end."""
    longest_s: float
    """In all, whatever the pod's time to end."""
    by_deadline: bool = False
    """Whether the deadline in the ledger counts instead: for an operator that did not see it being written."""

    def wait_s(self, grace_s: int) -> float:
        """Return how long the shares of a pod stay that may take so long to end."""
        return min(grace_s + self.delay_s, self.longest_s)


class ReleaseDeadlines:
    """Counts the time of shares that are to end, by the loop's clock."""

    def __init__(self, *, ends: Ends, times: ReleaseTimes, clock: Clock) -> None:
        self._clock = clock
        self._ends = ends
        self._times = times
        self._until_s: dict[str, float] = {}  # pod UID -> when its shares end, by the loop's clock, without a report

    def __contains__(self, pod_uid: str) -> bool:
        return pod_uid in self._until_s

    def pods(self) -> list[str]:
        """Return the UIDs of the pods whose shares are to end."""
        return list(self._until_s)

    def forget(self, pod_uid: str) -> None:
        """Record that the shares have ended, or stay."""
        self._until_s.pop(pod_uid, None)

    def wait_s(self, pod_uid: str, held: Held) -> float:
        """Return after what time the pod's shares end; 0: now; infinite: only when another word is known of it."""
        now_s = self._clock.now_s()
        report = self.end_report(pod_uid, held)
        least_s = 0.0 if report is EndReport.NO_AGENT else SPOKEN_WITHIN_S
        until_s = self._until_s.setdefault(pod_uid, now_s + max(self._first_wait_s(held), least_s))
        if report is EndReport.ENDED:
            return 0.0
        if report in (EndReport.RUNS, EndReport.AGENT_AWAY) and until_s <= now_s:
            return inf
        return max(0.0, until_s - now_s)

    def end_report(self, pod_uid: str, held: Held) -> EndReport:
        """Return the report on a pod; where its shares are on several nodes, the worst."""
        reports = [self._ends.end_report(card.node_name, pod_uid) for card, _ in held]
        return max(reports, key=lambda report: report.value, default=EndReport.NO_AGENT)

    def deadline(self, pod_uid: str) -> str:
        """Return when the pod's shares end without a report, RFC 3339, for people."""
        wait_s = self._until_s[pod_uid] - self._clock.now_s()
        return (self._clock.wall() + timedelta(seconds=wait_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _first_wait_s(self, held: Held) -> float:
        if self._times.by_deadline:
            now = self._clock.wall()
            left = [(datetime.fromisoformat(h.deadline) - now).total_seconds() for _, h in held if h.deadline]
            if left:
                return max(left) + DEADLINE_ROUNDING_S
        grace_s = max((holder.pod.grace_s for _, holder in held), default=0)
        return self._times.wait_s(grace_s)
