"""The agents' reports of pods that have ended without a report of their kubelet."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from gpuledger.formats.objects.pod_ends import read_ends
from gpuledger.model.errors import BadInput
from gpuledger.model.listeners import Listeners
from gpuledger.workflows.inventory.agent_pods import AgentPods

logger = logging.getLogger(__name__)

Json = dict[str, Any]


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
    """Return what a node's annotation says of a pod; None: it has none."""
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
        """Note that a node is gone."""
        if self._reported.pop(node_name, None) is not None:
            self.on_news(node_name)

    def end_report(self, node_name: str, pod_uid: str) -> EndReport:
        """Return what is known of a pod that had a share on a node."""
        report = end_report_of(self._reported.get(node_name), pod_uid)
        is_away = report is EndReport.NOT_REPORTED and self._agents.not_ready(node_name)
        return EndReport.AGENT_AWAY if is_away else report

    def agent_has_changed(self, node_name: str) -> None:
        """Note that a node's agent has become Ready, or is not any more."""
        if node_name in self._reported:
            self.on_news(node_name)
