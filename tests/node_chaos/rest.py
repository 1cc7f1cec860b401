"""What must hold of a node once all faults have stopped and everything has had time to be put right."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chaos.arithmetic import asks_of, has_ended, is_bound
from chaos.checker import Finding
from gpuledger.formats.runtime.cdi import FILE_PREFIX, FILE_SUFFIX, read_grant
from gpuledger.model.errors import BadInput
from node_chaos.checker import running
from node_chaos.claims import REQUEST, claim_of, may_wait, use_of
from node_chaos.sight import Container
from node_chaos.steps import Isolation

Json = dict[str, Any]

MOST_COUNTERS_BYTES = 8 << 20

FORGOTTEN = "no devices found allocated in local cache"
"""What a kubelet says of a container that it can't start: it has lost its record of the container's slots. It never
allocates them anew for a plugin that wants to be asked before a start; the pod has to be deleted."""


def unsettled_containers(
    pods: Mapping[str, Json],
    containers: Iterable[Container],
    may_forget: bool = False,
    isolation: Isolation = "none",
    complete: bool = True,
) -> Iterator[Finding]:
    """Yield what is not in order between pods, by UID, and what runs; `may_forget`: the kubelet has lost its record.

    By `isolation`, a pod may have to wait. The runtime's files are not `complete` if somebody has removed some: those
    of claims come again with the next agent.
    """
    there = running(containers)
    for uid, name in there:
        pod = pods.get(uid)
        if pod is None or has_ended(pod):
            why = "is gone" if pod is None else "has ended"
            yield Finding("a container is left over", f"{name} of pod {uid}, which {why}", pods=(uid,))
    for uid, pod in pods.items():
        name = pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp"):
            yield Finding("a pod that was deleted does not go", name, pods=(uid,))
        elif is_bound(pod) and not has_ended(pod):
            missing = [each["name"] for each in pod["spec"]["containers"] if (uid, each["name"]) not in there]
            stays = pod["spec"]["restartPolicy"] == "Always" and not (may_forget and is_forgotten(pod))
            if may_wait(pod, isolation) or (claim_of(pod) and not complete):
                continue
            if missing and stays:
                statuses = pod["status"].get("containerStatuses")
                yield Finding("a bound pod does not run", f"{name}: {missing}; {statuses}", pods=(uid,))


def is_forgotten(pod: Json) -> bool:
    """Return whether a kubelet has lost its record of the slots of one of a pod's containers, and does not start it."""
    status = pod.get("status") or {}
    found = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return any(FORGOTTEN in str((each["state"].get("waiting") or {}).get("message")) for each in found)


def unsettled_files(
    files: Mapping[str, bytes], pods: Mapping[str, Json], containers: Iterable[Container], complete: bool = True
) -> Iterator[Finding]:
    """Yield what is not in order with the runtime's files: name -> content.

    They are not `complete` if somebody has removed some, or the kubelet has forgotten what it gave out: a container
    needs its file only when it starts anew, and has it then.
    """
    granted: dict[tuple[str, str], tuple[str, ...]] = {}
    joint = {use.joint for pod in pods.values() if not has_ended(pod) and (use := claim_of(pod))}
    for file, text in files.items():
        if not file.startswith(FILE_PREFIX):
            continue
        if not file.endswith(FILE_SUFFIX):
            yield Finding("a temporary file is left over", file)
            continue
        try:
            grant = read_grant(text)
        except BadInput as error:
            yield Finding("a file of ours can't be read", f"{file}: {error}")
            continue
        granted[grant.pod_uid if grant.of_one_pod else grant.pod, grant.container.rpartition("/")[2]] = grant.uuids
        if not grant.of_one_pod and grant.pod in joint:
            continue
        if grant.pod_uid not in pods or has_ended(pods[grant.pod_uid]):
            yield Finding("a file of a pod that is gone is left over", f"{file}: {grant.pod}", pods=(grant.pod_uid,))
    for key, container in running(containers).items():
        uuids = tuple(uuid for uuid, _, _ in container.cards)
        use = use_of(pods[key[0]], key[1]) if key[0] in pods else None
        key = (use.joint or key[0], REQUEST) if use else key
        if uuids and granted.get(key, () if complete else uuids) != uuids:
            why = f"{container.name} of {container.pod_uid} has {uuids}, its file says {granted.get(key)}"
            yield Finding("a container that runs has no file of its own", why, pods=(container.pod_uid,))


def unsettled_counters(taken: Mapping[str, int]) -> Iterator[Finding]:
    """Yield counters of HAMi-core that have more of the node's disk than they need: path -> bytes."""
    for path, size_bytes in taken.items():
        if size_bytes > MOST_COUNTERS_BYTES:
            yield Finding("a container fills the node's disk with its counters", f"{path}: {size_bytes >> 20} MiB")


def unsettled_slots(checkpoint: bytes, containers: Iterable[Container]) -> Iterator[Finding]:
    """Yield where the kubelet's record of slots does not agree with what runs: one for each card, none of two pods."""
    slots: dict[tuple[str, str], set[str]] = {}  # pod UID and container's name -> slots, of all resources
    for entry in (json.loads(checkpoint)["Data"]["PodDeviceEntries"] or ()) if checkpoint else ():
        listed = {f"{entry['ResourceName']} {slot}" for several in entry["DeviceIDs"].values() for slot in several}
        slots.setdefault((entry["PodUID"], entry["ContainerName"]), set()).update(listed)
    owners: dict[str, str] = {}  # slot -> UID of the pod whose container has it
    for key, container in running(containers).items():
        found = slots.get(key, set())
        if len(found) != len(container.cards):
            text = f"{container.name} of {container.pod_uid} has {len(container.cards)} cards, and slots {found}"
            yield Finding("the kubelet has not as many slots as a container has cards", text, pods=key[:1])
        for slot in found:
            owner = owners.setdefault(slot, container.pod_uid)
            if owner != container.pod_uid:
                yield Finding("the kubelet has given a slot twice", slot, pods=(owner, container.pod_uid))


def counts(pods: Iterable[Json]) -> dict[str, int]:
    """Return how many pods have failed, by reason, and how many their kubelet has forgotten."""
    pods = list(pods)
    failed = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Failed" and asks_of(pod)]
    reasons = [str(pod["status"].get("reason") or "containers failed") for pod in failed]
    forgotten = {"pods forgotten by the kubelet": sum(map(is_forgotten, pods))}
    return {f"pods failed: {reason}": reasons.count(reason) for reason in reasons} | forgotten
