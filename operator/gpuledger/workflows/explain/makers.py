"""What a pod's maker has to do with its waiting: a workload that Kueue does not admit, a Deployment's older pods."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.formats.kubernetes.pod import created_at, deployment_of
from gpuledger.formats.kubernetes.workload import GATE, GROUP_LABEL, why_not_admitted, workload_of
from gpuledger.formats.scheduler import SchedulerWords
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.quotas import Excess
from gpuledger.model.errors import ApiError, NodeVerdict
from gpuledger.model.json_object import Json


async def why_gated(store: KubeStore, pod: Json, words: SchedulerWords) -> str:
    """Return why a gated pod's Kueue workload waits; empty without Kueue's gate, or if no reason is stated."""
    if GATE not in words.gates:
        return ""
    try:
        found = await _workload(store, pod)
    except ApiError:  # the settings do not say `kueue`, and the operator may not read them; or it is gone
        return ""
    why = why_not_admitted(found) if found else ""
    return f"its workload {found['metadata']['name']} {why}" if found and why else ""


async def _workload(store: KubeStore, pod: Json) -> Json | None:
    metadata = pod["metadata"]
    named = workload_of(pod)
    group = (metadata.get("labels") or {}).get(GROUP_LABEL)  # its workload has the same name
    name = named[0].name if named else group
    if name:
        return await store.workload(metadata["namespace"], name)
    async for page in store.workloads(metadata["namespace"], metadata["uid"]):
        for each in page:
            return each
    return None


LOOKED_AT = 3
"""Of the pods in the way that can be older ones of a pod's Deployment."""


def in_the_way(nodes: Iterable[NodeVerdict], excess: Excess | None) -> set[str]:
    """Return the pods that hold what a pod lacks, namespace/name: on the nodes that it could go to, or of its quota."""
    on_cards = {name for node in nodes if not node.refused_by_scheduler for card in node.cards for name in card.by}
    return on_cards | {str(pod) for pod, _ in (excess.largest if excess else ())}


async def of_older_version(store: KubeStore, pod: Json, in_way: Iterable[str]) -> str:
    """Return what to do where a rolling update waits for itself; empty where older pods hold none of what is lacking.

    The pods in the way are looked for by their names, and one of them is read.
    """
    made = deployment_of(pod)
    if made is None:
        return ""
    begins = f"{pod['metadata']['namespace']}/{made.name}-"
    others = (name for name in in_way if name.startswith(begins) and not name.startswith(f"{begins}{made.template}-"))
    for name in sorted(others)[:LOOKED_AT]:
        try:
            other = await store.pod(*name.split("/"))
        except ApiError:
            continue
        found = deployment_of(other)
        if found and found.name == made.name and found != made and created_at(other) <= created_at(pod):
            return (
                f". Pods of another version of its own Deployment {made.name} hold cards, and with maxSurge these end "
                f"only once this pod runs: set maxSurge: 0 and maxUnavailable: 1 in the Deployment's strategy"
            )
    return ""
