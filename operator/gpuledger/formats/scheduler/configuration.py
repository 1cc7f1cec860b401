"""kube-scheduler's configuration, and the message in a pod's condition when it finds no node.

The configuration is rendered from the same settings that the operator runs with. Of the message, reasons of
kube-scheduler are told from those of gpuledger. Source: FitError.Error() of Kubernetes' pkg/scheduler/framework: "0/N
nodes are available: ", then either a sentence about all nodes, or "COUNT REASON" for each reason, joined by ", "; then
". " and the result of preemption. Reasons of an extender stand among those of kube-scheduler's own plugins, unmarked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from gpuledger.formats.dialects.sums import SUMS
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.event import condition_of
from gpuledger.formats.kubernetes.lease import (
    LEASE_DURATION_S,
    LEASE_NAME,
    LEASE_NAMESPACE,
    RENEW_DEADLINE_S,
    RETRY_PERIOD_S,
)
from gpuledger.model.json_object import JsonMapping

PLACED_BY_US = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
"""In-tree plugins whose scores would weigh against the policy, and that no pod has asked for: emptier nodes first."""

CLAIMS_PLUGIN = "DynamicResources"
"""The in-tree plugin that would allocate pods' ResourceClaims itself."""

LONGEST_BACK_OFF_S = 10
"""Before kube-scheduler tries a pod again, at most: its own default, and said all the same, for much relies on it."""

LONGEST_BACK_OFF_OF_GROUPS_S = 1
"""The same where it tries groups as a whole: it can't be made to try one earlier, and from 1.37 on, this is multiplied
by the square root of a group's members. So one of 64 is tried within eight seconds of room."""


def scheduler_configuration(
    scheduler_names: Sequence[str],
    dialects: Dialects,
    extender_url: str,
    http_timeout_s: int,
    leader_elect: bool,
    nodes_offered: int = 1,
    native_gangs: bool = False,
    resource_claims: bool = False,
    all_drivers_name: str = "",
    gather_s: float = inf,
) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration with a profile for each name; the extender decides on their pods' cards.

    All resources are ignored by the scheduler itself, the count too: it would count slots where cards matter, and its
    preemption would evict pods for them. Where it preempts for want of CPU, it asks whether that makes room on cards,
    too. Every node is looked at, because a sample could miss the only one with room.
    Where it is offered several nodes, it scores them by what the pod itself prefers, and by the extender.
    With `resource_claims`, it leaves pods' ResourceClaims to the extender, and asks it about all pods of its profiles;
    but in the profile `all_drivers_name`, it allocates them itself, those of other drivers for good.
    `gather_s` is how long the first members of a gang that are to be bound wait for the last one.
    """
    names = [*dialects.resources(), *SUMS]
    ignored = names if resource_claims else ()
    profiles = [
        {
            "schedulerName": name,
            "percentageOfNodesToScore": 100,
            **_profile(nodes_offered > 1, ignored, claims_too=name == all_drivers_name),
        }
        for name in scheduler_names
    ]
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": leader_elect,
            "resourceName": LEASE_NAME,
            "resourceNamespace": LEASE_NAMESPACE,
            "leaseDuration": f"{LEASE_DURATION_S}s",
            "renewDeadline": f"{RENEW_DEADLINE_S}s",
            "retryPeriod": f"{RETRY_PERIOD_S}s",
        },
        "clientConnection": {"qps": 1000, "burst": 2000},
        "podMaxBackoffSeconds": LONGEST_BACK_OFF_OF_GROUPS_S if native_gangs else _longest_back_off_s(gather_s),
        "profiles": profiles,
        "extenders": [
            {
                "urlPrefix": extender_url,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 1,
                "enableHTTPS": False,
                "httpTimeout": f"{http_timeout_s}s",
                "nodeCacheCapable": True,
                "ignorable": False,
                # Without names, it is asked about all pods: those with ResourceClaims name none.
                **({} if resource_claims else {"managedResources": [_managed(name) for name in names]}),
            }
        ],
    }


def _longest_back_off_s(gather_s: float) -> int:
    """Return before how many seconds a pod is tried again, at most.

    The members of a gang fail at different times, so they are tried again at different times: if they waited longer
    than the others stand in Bind, they could miss each other for ever.
    """
    return max(1, int(min(LONGEST_BACK_OFF_S, gather_s / 2)))


def _managed(name: str) -> dict[str, Any]:
    return {"name": name, "ignoredByScheduler": True}


def _profile(scores: bool, ignored: Sequence[str], claims_too: bool) -> dict[str, Any]:
    """Return the plugins of a profile.

    With `scores`, these are kept to the pods' own preferences: no default spreading either. `ignored` are the resources
    that the scheduler leaves to an extender which is asked about all pods; their claims are left to it, too, but
    with `claims_too`.
    """
    plugins: dict[str, Any] = {}
    arguments: list[dict[str, Any]] = []
    if scores:
        plugins["score"] = {"disabled": [{"name": name} for name in PLACED_BY_US]}
        spreading = {"defaultingType": "List", "defaultConstraints": []}
        arguments.append({"name": "PodTopologySpread", "args": spreading})
    if ignored:
        if not claims_too:
            plugins["multiPoint"] = {"disabled": [{"name": CLAIMS_PLUGIN}]}
        arguments.append({"name": "NodeResourcesFit", "args": {"ignoredResources": [*ignored]}})
    return {name: value for name, value in (("plugins", plugins), ("pluginConfig", arguments)) if value}


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
        """Return whether no node takes the pod for what pod and nodes say, whichever other pods leave."""
        return bool(self.gates) or (self.refused_all and all(_RULES.match(text) for text, _ in self.own))

    @property
    def in_short(self) -> str:
        """Return its own reasons in a line: "Insufficient cpu (3), node(s) were unschedulable (1)"."""
        return ", ".join(f"{text} ({count})" if count else text for text, count in self.own)


def scheduler_words(pod: JsonMapping) -> SchedulerWords:
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
