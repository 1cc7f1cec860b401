"""What kube-scheduler writes into a pod's condition when it finds no node: which of it is its own, and which is ours.

Source: FitError.Error() of Kubernetes' pkg/scheduler/framework: "0/N nodes are available: ", then either a sentence
about all nodes, or "COUNT REASON" for each reason, joined by ", "; then ". " and what preemption has to say. Reasons of
an extender stand among those of kube-scheduler's own plugins, unmarked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.formats.objects.condition import condition_of

Json = Mapping[str, Any]

LONGEST = 16 * 1024
"""Characters of a message that are read: a condition's message can't be longer than 32 KiB."""

_COUNTED = re.compile(r"^0/(?P<nodes>\d+) nodes are available(?:: (?P<rest>.*))?$", re.DOTALL)
_REASON = re.compile(r"(?:^|, )(?P<count>\d+) (?P<text>.+?)(?=, \d+ |$)", re.DOTALL)
_END = re.compile(r"\.(?: |$)")

_OWN = re.compile(r"Insufficient |Too many pods|node\(s\) |node declared features |cannot allocate all claims")
"""How the reasons of Kubernetes' plugins begin, in all of pkg/scheduler/framework/plugins but those that refuse a pod
for all nodes at once."""

_RESOURCE = "Insufficient "

_RULES = re.compile(
    r"node\(s\) (didn't match Pod's node affinity|didn't match the requested node name|had untolerated taint"
    r"|were unschedulable)"
)
"""How reasons begin that other pods have no part in, in plugins nodeaffinity, nodename, tainttoleration and
nodeunschedulable."""

NO_NODES = "no nodes available to schedule pods"
"""What it writes in a cluster without any node."""


@dataclass(frozen=True, slots=True)
class SchedulerWords:
    """What kube-scheduler wrote last about a pod."""

    own: tuple[tuple[str, int], ...] = ()
    """Its own reasons, and for how many nodes each, most first; 0: for all of them at once."""
    refused_all: bool = False
    """Whether these stand for every node, so that the operator was not asked about any."""
    gates: tuple[str, ...] = ()
    """The scheduling gates because of which it does not look at the pod at all."""

    @property
    def short_of(self) -> tuple[str, ...]:
        """Return the resources of which it found too little."""
        return tuple(text.removeprefix(_RESOURCE) for text, _ in self.own if text.startswith(_RESOURCE))

    @property
    def rules_out(self) -> bool:
        """Tell whether no node takes the pod for what pod and nodes say, whichever other pods leave."""
        return bool(self.gates) or (self.refused_all and all(_RULES.match(text) for text, _ in self.own))

    @property
    def in_short(self) -> str:
        """Return its own reasons in a line: "Insufficient cpu (3), node(s) were unschedulable (1)"."""
        return ", ".join(f"{text} ({count})" if count else text for text, count in self.own)


def scheduler_words(pod: Json) -> SchedulerWords:
    """Return what kube-scheduler wrote into a pod's status; nothing if it has not, or it can't be read."""
    last = condition_of(pod, "PodScheduled")
    if last is None or last.get("status") != "False":
        return SchedulerWords()
    if last.get("reason") == "SchedulingGated":
        return SchedulerWords(gates=tuple(str(gate.get("name")) for gate in pod["spec"].get("schedulingGates") or ()))
    if last.get("reason") != "Unschedulable":
        return SchedulerWords()
    return read_words(str(last.get("message") or ""))


def read_words(message: str) -> SchedulerWords:
    """Return what a message says; nothing if it has another form."""
    if message.startswith(NO_NODES):
        return SchedulerWords(((NO_NODES, 0),), refused_all=True)
    found = _COUNTED.match(message[:LONGEST])
    if not found or not found["rest"]:
        return SchedulerWords()
    said = _END.split(found["rest"], maxsplit=1)[0]
    reasons = [(each["text"], int(each["count"])) for each in _REASON.finditer(said)]
    if not reasons:
        return SchedulerWords(((said, 0),), refused_all=True)
    own = sorted((each for each in reasons if _OWN.match(each[0])), key=lambda each: -each[1])
    return SchedulerWords(tuple(own), refused_all=len(own) == len(reasons))
