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


class Word(Enum):
    """The state of a pod that has ended, the worst last."""

    ENDED = auto()
    """Nothing of it runs."""
    NO_AGENT = auto()
    """No agent will report it: its node is gone, or has no agent that does."""
    NOTHING_SAID = auto()
    """The node's agent answers, and has not spoken of it."""
    AGENT_AWAY = auto()
    """The node's agent is not Ready, so what it has not said means nothing."""
    RUNS = auto()
    """Processes or containers of it are left."""


def word_of(said: Mapping[str, bool] | None, pod_uid: str) -> Word:
    """Return what a node's annotation says of a pod; None: it has none."""
    if said is None:
        return Word.NO_AGENT
    runs = said.get(pod_uid)
    return Word.NOTHING_SAID if runs is None else Word.RUNS if runs else Word.ENDED


class PodEnds:
    """Remembers it by node. A node's word counts for the shares on its own cards only."""

    def __init__(self, agents: AgentPods) -> None:
        self._agents = agents
        self._said: dict[str, dict[str, bool]] = {}  # node name -> UID of a pod -> whether anything of it runs
        self.on_news = Listeners[[str]]()
        """Called with the name of a node of which another word may be known now."""

    def observe(self, node: Json) -> None:
        """Observe a Node as it is now."""
        name = node["metadata"]["name"]
        before = self._said.get(name)
        try:
            said = read_ends(node)
        except BadInput as error:  # its agent corrects it
            logger.warning("node %s: %s", name, error)
            return
        if said is None:
            self._said.pop(name, None)
        else:
            self._said[name] = said
        if said != before:
            self.on_news(name)

    def forget(self, node_name: str) -> None:
        """Note that a node is gone."""
        if self._said.pop(node_name, None) is not None:
            self.on_news(node_name)

    def word(self, node_name: str, pod_uid: str) -> Word:
        """Return what is known of a pod that had a share on a node."""
        word = word_of(self._said.get(node_name), pod_uid)
        is_away = word is Word.NOTHING_SAID and self._agents.not_ready(node_name)
        return Word.AGENT_AWAY if is_away else word

    def agent_has_changed(self, node_name: str) -> None:
        """Note that a node's agent has become Ready, or is not any more."""
        if node_name in self._said:
            self.on_news(node_name)
