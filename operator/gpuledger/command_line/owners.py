"""What `explain deploy/NAME` is about: its workload of Kueue if it has one, else its gang, else its oldest pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.options import KINDS, OWNERS, Named, no_such
from gpuledger.formats.custom_resource.stored_card import API_VERSION
from gpuledger.formats.kubernetes.gang import gang_name_of
from gpuledger.formats.kubernetes.pod import bound_node, created_at, is_finished
from gpuledger.formats.kubernetes.workload import GROUP, GROUP_LABEL
from gpuledger.model.errors import BadInput, Denied, NotFound, did_you_mean
from gpuledger.model.json_object import Json

GROUPS = {
    "pod": "/api/v1",
    **dict.fromkeys(("job", "cronjob"), "/apis/batch/v1"),
    **dict.fromkeys(("deployment", "statefulset", "replicaset", "daemonset"), "/apis/apps/v1"),
    "workload": f"/apis/{GROUP}",
    "gpureservation": f"/apis/{API_VERSION}",
    "gpuusage": f"/apis/{API_VERSION}",
}
"""Kind -> the path of its version in the API."""

BETWEEN = ("replicaset", "job")
"""Kinds that stand between pods and what somebody has made: a Deployment, a JobSet."""


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Return the path of an object, or of all of its kind; of all namespaces without one."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{GROUPS[kind]}{where}/{kind}s" + (f"/{name}" if name else "")


class Owner(NamedTuple):
    """What has made pods: its kind in small letters, and its name."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What an owner's explanation is about."""

    named: Named
    owner: str
    """As people write it: Deployment/chat."""
    also_waiting: tuple[str, ...] = ()
    """The names of the other pods that wait."""


def subject_of(cluster: ClusterAccess, wanted: Named, namespace: str) -> Subject:
    """Return what to explain of an object that makes pods. Raises BadInput if it has no pods, and ApiError."""
    owner = Owner(wanted.kind, wanted.name or "")
    workloads = list(workloads_read(cluster, namespace))
    own = [found for found in workloads if owner in map(_owner, _references(found))]
    if own:
        return Subject(Named("workload", _newest(own)), _shown(owner, own))
    pods = [pod for pod in _pods(cluster, owner, namespace) if not is_finished(pod)]
    if not pods:
        raise BadInput(_without_pods(cluster, owner, namespace))
    shown = _shown(owner, pods)
    groups = {(pod["metadata"].get("labels") or {}).get(GROUP_LABEL) for pod in pods}
    if group := next((found for found in workloads if found["metadata"]["name"] in groups), None):
        return Subject(Named("workload", group["metadata"]["name"]), shown)
    if gang := next(filter(None, map(gang_name_of, pods)), None):
        return Subject(Named("gang", gang.name), shown)
    waiting = sorted((pod for pod in pods if not bound_node(pod)), key=created_at)
    names = [str(pod["metadata"]["name"]) for pod in waiting or pods]
    return Subject(Named("pod", names[0]), shown, tuple(names[1:]) if waiting else ())


def workloads_read(cluster: ClusterAccess, namespace: str) -> Iterator[Json]:
    """Yield the workloads of a namespace, or of all; none where there is no Kueue, or the account may not list them."""
    try:
        yield from cluster.begin(path_of("workload", namespace))
    except (NotFound, Denied):
        return


def _newest(found: Iterable[Json]) -> str:
    return str(max(found, key=created_at)["metadata"]["name"])


def _references(found: Json) -> list[Json]:
    return list(found["metadata"].get("ownerReferences") or ())


def _owner(reference: Json) -> Owner:
    return Owner(str(reference.get("kind") or "").lower(), str(reference.get("name") or ""))


def _pods(cluster: ClusterAccess, owner: Owner, namespace: str) -> list[Json]:
    """Return the pods that an owner has made, or that were made by what it has made."""
    pods = list(cluster.begin(path_of("pod", namespace)))
    own = [pod for pod in pods if owner in map(_owner, _references(pod))]
    if own or owner.kind in BETWEEN:
        return own
    made: set[Owner] = set()
    for kind in BETWEEN:
        try:
            there = list(cluster.begin(path_of(kind, namespace)))
        except Denied:
            continue
        made |= {Owner(kind, item["metadata"]["name"]) for item in there if owner in map(_owner, _references(item))}
    return [pod for pod in pods if not made.isdisjoint(map(_owner, _references(pod)))]


def _shown(owner: Owner, objects: Iterable[Json]) -> str:
    kinds = (str(each["kind"]) for found in objects for each in _references(found) if _owner(each) == owner)
    return f"{next(kinds, owner.kind.capitalize())}/{owner.name}"


def _without_pods(cluster: ClusterAccess, owner: Owner, namespace: str) -> str:
    """Return why there is nothing to explain: it does not exist, or has no pods."""
    if owner.kind not in OWNERS:
        known = [word for words in (*KINDS.values(), *OWNERS.values()) for word in words]
        text = f"no pod and no workload of namespace {namespace!r} is of a {owner.kind} {owner.name!r}"
        return f"{text}{did_you_mean(owner.kind, known)}"
    try:
        cluster.read(path_of(owner.kind, namespace, owner.name))
    except NotFound:
        return no_such(owner.kind, owner.name, namespace)
    except Denied:
        pass
    where = f"{owner.kind} {owner.name} -n {namespace}"
    return f"{owner.kind}/{owner.name} has no pods that wait or run: `kubectl describe {where}` says why"
