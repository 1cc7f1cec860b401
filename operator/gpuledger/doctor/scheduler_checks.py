"""Checks of the operator, the kube-schedulers beside it, the settings that they share, and how gangs are scheduled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

from gpuledger.doctor.facts import (
    OPERATOR_APP,
    Facts,
    differences,
    known,
    name_of,
    pods_of_app,
    some_of,
    time_of,
    why_not_ready,
)
from gpuledger.doctor.kinds import Finding, FindingKind
from gpuledger.formats.kubernetes.gang import described
from gpuledger.formats.kubernetes.other import LEASE_NAME, LEASE_NAMESPACE, holder_host_name
from gpuledger.formats.kubernetes.pod import bound_node, is_finished, is_ready, scheduler_of
from gpuledger.formats.scheduler import CLAIMS_PLUGIN, url_without
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.reports.explanation import divided, gangs_of, placed_by

LEASE = f"Lease {LEASE_NAMESPACE}/{LEASE_NAME}"
DEPLOYMENT = f"Deployment {LEASE_NAMESPACE}/gpuledger"
LATE = timedelta(seconds=5)
"""By how much a Lease may be overdue: the clock that it is compared with is known to the second."""


def check_settings(facts: Facts) -> Iterator[Finding]:
    """Yield in what the settings differ that were found, from the first of them."""
    found = known(facts.settings)
    (first, wanted), *others = found.items()
    for where, values in others:
        if different := sorted(option for option in wanted if values[option] != wanted[option]):
            described = [
                f"{option} is {_spelled(values[option])} and {_spelled(wanted[option])}" for option in different
            ]
            yield Finding.of(FindingKind.SETTINGS_DIFFER, where, f"not as in {first}: {some_of(described)}")


def check_release(facts: Facts) -> Iterator[Finding]:
    """Yield workloads whose images are of another release than what the cluster is compared with."""
    ours = known(facts.release).version
    for kind, workload in (("Deployment", known(facts.deployment)), ("DaemonSet", known(facts.daemon_set))):
        containers = workload["spec"]["template"]["spec"]["containers"] if workload is not None else ()
        for container in containers:
            tag = re.search(r"(?:^|/)gpuledger:v?(\d+\.\d+\.\d+[^/@]*)", container.get("image") or "")
            if tag and tag[1] != ours:
                text = f"container {container['name']} is gpuledger {tag[1]}, the doctor {ours}"
                where = f"{kind} {LEASE_NAMESPACE}/{name_of(workload or {})}"
                yield Finding.of(FindingKind.RELEASE_DIFFERS, where, text, RELEASE=tag[1])


def check_operator(facts: Facts) -> Iterator[Finding]:
    """Yield whether the operator's pods are there and Ready."""
    pods = [pod for pod in pods_of_app(known(facts.our_pods), OPERATOR_APP) if not is_finished(pod)]
    ready = [pod for pod in pods if is_ready(pod)]
    waiting = next((pod for pod in pods if not is_ready(pod)), None)
    wanted = facts.deployment["spec"].get("replicas", 1) if isinstance(facts.deployment, dict) else None
    if waiting is not None:
        text = f"pod {name_of(waiting)}: {why_not_ready(waiting, facts.last_words)}"
        kind = FindingKind.OPERATOR_DEGRADED if ready else FindingKind.OPERATOR_NOT_READY
        yield Finding.of(kind, DEPLOYMENT, f"{len(ready)} of {len(pods)} pods are Ready; {text}", POD=name_of(waiting))
    elif not pods and not facts.operator_elsewhere:
        yield _absent(wanted)
    elif wanted is not None and len(pods) < wanted:
        remedy = "kubectl describe replicaset -n gpuledger-system -l app.kubernetes.io/name=gpuledger says why."
        yield Finding.of(FindingKind.OPERATOR_DEGRADED, DEPLOYMENT, f"it has {len(pods)} of {wanted} pods", remedy)


def _absent(wanted: int | None) -> Finding:
    if wanted == 0:
        remedy = (
            "kubectl scale deployment/gpuledger -n gpuledger-system --replicas=2; or, if the operator runs elsewhere, "
            "name it by --operator-url"
        )
        return Finding.of(FindingKind.OPERATOR_ABSENT, DEPLOYMENT, "it is scaled to 0 replicas", remedy)
    text = "it has no pods" if wanted is None else f"it has 0 of {wanted} pods"
    return Finding.of(FindingKind.OPERATOR_ABSENT, DEPLOYMENT, text)


def check_lease(facts: Facts) -> Iterator[Finding]:
    """Yield whether a kube-scheduler of ours leads, and the operator beside it can answer."""
    lease = known(facts.lease)
    host_name = holder_host_name(lease) if lease is not None else ""
    if lease is None and facts.operator_elsewhere:
        return  # a kube-scheduler without leader election is beside it
    if lease is None or not host_name:
        problem = "there is none" if lease is None else "it has no holder"
        yield Finding.of(FindingKind.LEASE_NOT_HELD, LEASE, f"{problem}: no kube-scheduler places our pods")
        return
    renewed = time_of(lease["spec"].get("renewTime"))
    duration = timedelta(seconds=lease["spec"].get("leaseDurationSeconds") or 0)
    now = known(facts.server_time)
    if renewed is None or now - renewed > duration + LATE:
        ago = "never" if renewed is None else f"{(now - renewed).total_seconds():.0f} s ago"
        text = (
            f"its holder {host_name} renewed it last {ago}, and should every {duration.total_seconds():.0f} s at least"
        )
        yield Finding.of(FindingKind.LEASE_EXPIRED, LEASE, text, POD=host_name)
        return
    leader = next((p for p in pods_of_app(known(facts.our_pods), OPERATOR_APP) if name_of(p) == host_name), None)
    if leader is None:
        text = f"its holder is {host_name}, but no pod of the operator has that name"
        yield Finding.of(FindingKind.LEADER_UNKNOWN, LEASE, text)
    elif not is_ready(leader):
        why = why_not_ready(leader, facts.last_words)
        text = f"its kube-scheduler is the leader, and asks the operator of the same pod; {why}"
        yield Finding.of(FindingKind.LEADER_NOT_READY, f"pod {LEASE_NAMESPACE}/{host_name}", text, POD=host_name)


def check_scheduler_errors(facts: Facts) -> Iterator[Finding]:
    """Yield what kube-scheduler says of pods that it could not ask the operator about."""
    names = known(facts.release).scheduler_names
    failed: dict[str, list[str]] = {}  # what it said -> pods
    for pod in known(facts.pods):
        if scheduler_of(pod) in names and not bound_node(pod) and (words := _error_of(pod)):
            failed.setdefault(words, []).append(f"{pod['metadata']['namespace']}/{name_of(pod)}")
    for words, pods in failed.items():
        yield Finding.of(FindingKind.SCHEDULER_ERROR, "kube-scheduler", f"{words[:300]} (for {some_of(pods)})")


def _error_of(pod: Json) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    found = (c for c in conditions if c["type"] == "PodScheduled" and c.get("reason") == "SchedulerError")
    return next((str(condition.get("message") or "it does not say why") for condition in found), "")


def check_scheduler_config(facts: Facts) -> Iterator[Finding]:
    """Yield what is other than expected in configurations that were not rendered where they are used."""
    configs = known(facts.scheduler_configs)
    if not configs:
        return
    wanted = known(facts.release).scheduler_config
    for where, found in configs.items():
        for problem in _config_problems(wanted, found):
            yield Finding.of(FindingKind.SCHEDULER_CONFIG, where, problem)


def _config_problems(wanted: Json, found: Json) -> Iterator[str]:
    ours = wanted["extenders"][0]
    extenders = [each for each in found.get("extenders") or () if each.get("filterVerb") == ours["filterVerb"]]
    urls = [url_without(str(each.get("urlPrefix"))) for each in extenders]
    extender = next((each for each, url in zip(extenders, urls, strict=True) if url == ours["urlPrefix"]), None)
    if extender is None:
        yield f"no extender at {ours['urlPrefix']}, where the operator listens; there is {some_of(urls) or 'none'}"
        extender = extenders[0] if extenders else None
    if extender is not None:
        should, are = _managed(ours), _managed(extender)
        if missing := sorted(should - are):
            yield f"its extender does not manage {some_of(missing)}, which the settings have"
        if (others := sorted(are - should)) and not should:
            yield "its extender has managedResources, so it is not asked about pods that bring ResourceClaims"
        elif others:
            yield f"its extender manages {some_of(others)}, which the settings do not have"
        rest = {key: value for key, value in ours.items() if key not in ("urlPrefix", "managedResources")}
        has = {key: extender.get(key) for key in rest}
        if different := sorted(differences(rest, has)):
            yield f"its extender differs in {some_of(different)}"
    if not ours.get("managedResources"):
        yield from _profile_problems(found, {each["schedulerName"]: each for each in wanted["profiles"]})
    names = {each.get("schedulerName") for each in found.get("profiles") or ()}
    if missing := sorted({each["schedulerName"] for each in wanted["profiles"]} - names):
        yield f"it has no profile named {some_of(missing)}: pods that name it wait forever"


def _profile_problems(found: Json, wanted: Mapping[str, Json]) -> Iterator[str]:
    """Yield what profiles of ours do by themselves that is for an extender which is asked about all pods."""
    for profile in found.get("profiles") or ():
        name = profile.get("schedulerName")
        if name not in wanted:
            continue
        sets = (profile.get("plugins") or {}).values()
        off = {each.get("name") for part in sets for each in part.get("disabled") or ()}
        if not off & {CLAIMS_PLUGIN, "*"}:
            yield f"its profile {name} does not disable {CLAIMS_PLUGIN}, so it allocates ResourceClaims by itself"
        if missing := sorted(_ignored(wanted[name]) - _ignored(profile)):
            yield f"its profile {name} does not leave {some_of(missing)} to the extender (ignoredResources)"


def _ignored(profile: Json) -> set[str]:
    """Return the resources of which NodeResourcesFit takes no notice."""
    arguments = (each.get("args") or {} for each in profile.get("pluginConfig") or ())
    return {str(name) for each in arguments for name in each.get("ignoredResources") or ()}


def _managed(extender: Json) -> set[str]:
    return {str(each.get("name")) for each in extender.get("managedResources") or ()}


def _spelled(value: Any) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)


SPINS = (1, 36)
"""The kube-scheduler that tries a group that waits without a pause, unless a gate is off."""
PAUSES = "SchedulerPopFromBackoffQ"
GROUPS = "GenericWorkload"
GROUPS_SHOWN = 20


def check_group_gates(facts: Facts) -> Iterator[Finding]:
    """Yield whether the feature gates of our kube-scheduler go with the settings."""
    deployment, release = known(facts.deployment), known(facts.release)
    for container in deployment["spec"]["template"]["spec"]["containers"] if deployment is not None else ():
        if container["name"] != "kube-scheduler":
            continue
        gates, version = _gates(container), _version(container)
        if gates.get(GROUPS) != "true":
            if release.native_gangs:
                text = f"native_gangs is set, and its kube-scheduler has no feature gate {GROUPS}=true"
                yield Finding.of(FindingKind.GROUP_GATES, DEPLOYMENT, text)
            continue
        has = f"its kube-scheduler has {GROUPS}=true"
        if version == SPINS and gates.get(PAUSES) != "false":
            text = f"{has} without {PAUSES}=false, and is of 1.36: it tries a group that waits without a pause"
            yield Finding.of(FindingKind.GROUP_GATES, DEPLOYMENT, text)
        if not release.native_gangs:
            text = f"{has}, and native_gangs is not set: it tries a group long after there is room"
            yield Finding.of(FindingKind.GROUP_GATES, DEPLOYMENT, text)


def check_groups(facts: Facts) -> Iterator[Finding]:
    """Yield gangs of which some pods are another scheduler's, and Kubernetes' own with pods of several priorities."""
    names = known(facts.release).scheduler_names
    texts = (
        (gang, text)
        for gang, pods in sorted(gangs_of(known(facts.pods)).items())
        for text in divided(gang, list(map(placed_by, pods)), names)
    )
    for gang, text in islice(texts, GROUPS_SHOWN):
        yield Finding.of(FindingKind.GROUP_DIVIDED, f"{gang.namespace}, {described(gang)}", text)


def _gates(container: JsonMapping) -> dict[str, str]:
    """Return the feature gates of a container's command; the last word on each counts."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    flags = [word.partition("=")[2] for word in words if word.startswith("--feature-gates=")]
    pairs = (gate.partition("=") for flag in flags for gate in flag.split(","))
    return {name.strip(): value.strip().lower() for name, _, value in pairs}


def _version(container: JsonMapping) -> tuple[int, int] | None:
    tag = re.search(r":v?(\d+)\.(\d+)[^/]*$", container.get("image") or "")
    return (int(tag[1]), int(tag[2])) if tag else None
