"""What keeps a pod of one of Kueue's queues that kube-scheduler is not to look at: its workload says it."""

from __future__ import annotations

from gpuledger.formats.kubernetes.workload import GATE, GROUP_LABEL, why_not_admitted, workload_of
from gpuledger.formats.scheduler.configuration import SchedulerWords
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.errors import ApiError
from gpuledger.model.json_object import Json


async def why_gated(store: KubeStore, pod: Json, words: SchedulerWords) -> str:
    """Return what the workload of a pod with Kueue's gate waits for; empty without the gate, or if nothing says it."""
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
