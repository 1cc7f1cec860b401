"""The configuration of kube-scheduler, rendered from the same settings that the operator runs with."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from gpuledger.formats.dialects.sums import SUMS
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.objects.lease import (
    LEASE_DURATION_S,
    LEASE_NAME,
    LEASE_NAMESPACE,
    RENEW_DEADLINE_S,
    RETRY_PERIOD_S,
)

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
