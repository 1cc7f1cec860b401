"""The same pods in classic words, with claims, and with claims that kube-scheduler allocates by itself.

The last are on ResourceSlices of the same cards, under a driver's name of their own and without taints. Which programs
write is read from the audit log: claims are made and deleted by kube-controller-manager.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmark.measuring import Figures, measure
from benchmark.shapes import OURS, STOCK_CLAIMS, WITH_CLAIMS, pod, scheduler_of
from benchmark.site import PATIENCE_S, POLL_S, Json, Site
from benchmark.watching import PODS
from control_plane import WRITE_VERBS, AuditEvent
from gpuledger.formats.resource_claims.claims import CORES, DEVICE_CLASS, MEMORY
from gpuledger.formats.resource_claims.slices import NodeOwner, slices_of
from gpuledger.kube_api.reads import ALLOCATIONS
from gpuledger.model.errors import Conflict
from installation import USER

CASE = "claims"
SUBJECTS = (OURS, WITH_CLAIMS, STOCK_CLAIMS)

WORDS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10240", "nvidia.com/gpucores": "30"}
AMOUNTS = {MEMORY: "10Gi", CORES: "30"}
"""The same share."""

PODS_PER_CARD = 3
WARM_UP_PODS = 8

STOCK_DRIVER = "gpu.bench.example"
"""Driver and DeviceClass of what kube-scheduler allocates by itself."""

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
POD_CLAIM = "gpu"
CLASS_OF = {WITH_CLAIMS: DEVICE_CLASS, STOCK_CLAIMS: STOCK_DRIVER}

OPERATOR, SCHEDULER, CONTROLLERS = "operator", "scheduler", "controllers"
PROGRAMS = {"kube-scheduler": SCHEDULER, "kube-controller-manager": CONTROLLERS}


async def prepare(site: Site) -> None:
    """Create what pods can claim, and the slices that kube-scheduler allocates from by itself."""
    for name in CLASS_OF.values():
        selector = {"cel": {"expression": f'device.driver == "{name}"'}}
        await _ensure(site, f"{API}/deviceclasses", "DeviceClass", name, {"selectors": [selector]})
        exactly = {"deviceClassName": name, "capacity": {"requests": AMOUNTS}}
        spec = {"devices": {"requests": [{"name": POD_CLAIM, "exactly": exactly}]}}
        await _ensure(site, TEMPLATES, "ResourceClaimTemplate", name, {"spec": spec})
    uids = {node["metadata"]["name"]: node["metadata"]["uid"] for node in await _listed(site, "/api/v1/nodes")}
    for node in site.nodes:
        for each in slices_of(NodeOwner(node.name, uids[node.name]), node.cards, 1).values():
            await _ensure(site, f"{API}/resourceslices", each["kind"], *_of_stock(each))


def _of_stock(own: Json) -> tuple[str, Json]:
    """Return name and spec of a slice of the other driver that shows the same cards, for everybody."""
    spec = own["spec"]
    devices = [{key: value for key, value in device.items() if key != "taints"} for device in spec["devices"]]
    return f"{spec['nodeName']}-{STOCK_DRIVER}", {**spec, "driver": STOCK_DRIVER, "devices": devices}


async def _ensure(site: Site, path: str, kind: str, name: str, spec: Json) -> None:
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    try:
        await site.admin.request("POST", path, body)
    except Conflict:  # it is there
        return


def pods_of(subject: str, count: int, role: str = "measured") -> list[Json]:
    """Return pods of a subject, all with the same share."""
    return [_pod(f"{role}-{number}", subject, role) for number in range(count)]


def _pod(name: str, subject: str, role: str) -> Json:
    made = pod(name, scheduler_of(subject), WORDS if subject == OURS else {}, role)
    if subject in CLASS_OF:
        made["spec"]["resourceClaims"] = [{"name": POD_CLAIM, "resourceClaimTemplateName": CLASS_OF[subject]}]
        made["spec"]["containers"][0]["resources"]["claims"] = [{"name": POD_CLAIM}]
    return made


async def measure_claims(site: Site, subject: str, count: int) -> Figures:
    """Schedule the pods of a subject, count what they took, and delete them.

    For kube-scheduler by itself the operator does not run; it does afterwards.
    """
    alone = subject == STOCK_CLAIMS
    if alone:
        site.stop_operator()
    await site.start_scheduler(subject)
    await measure(site, pods_of(subject, WARM_UP_PODS, "warm-up"))
    await _delete_all(site)
    offset = site.plane.audit_offset()
    figures = await measure(site, pods_of(subject, count))
    del figures["cards_per_s"]
    cards, nodes = await _used(site, subject)
    figures |= {"cards_used": float(cards), "nodes_used": float(nodes)}
    figures |= _by_program(site.plane.audit_events(offset), "", count)
    await _delete_all(site)
    figures |= _by_program(site.plane.audit_events(offset), "life_", count)
    if alone:
        site.stop_scheduler()
        await site.start_operator()
    return figures


async def _delete_all(site: Site) -> None:
    """Delete all pods, and wait until their claims are gone as well."""
    await site.delete_pods()
    async with asyncio.timeout(PATIENCE_S):
        while await _listed(site, CLAIMS):  # noqa: ASYNC110 - in another program
            await asyncio.sleep(POLL_S)
    await site.quiet()


async def _used(site: Site, subject: str) -> tuple[int, int]:
    """Return how many cards have a share, and on how many nodes there are pods."""
    bound = await _listed(site, PODS)
    nodes = {each["spec"]["nodeName"] for each in bound}
    if subject != STOCK_CLAIMS:
        cards = await _listed(site, ALLOCATIONS)
        return sum(bool((card.get("status") or {}).get("holders")) for card in cards), len(nodes)
    allocated = [claim["status"]["allocation"]["devices"]["results"] for claim in await _listed(site, CLAIMS)]
    return len({(each["pool"], each["device"]) for results in allocated for each in results}), len(nodes)


async def _listed(site: Site, path: str) -> list[dict[str, Any]]:
    return [item async for page in site.admin.pages(path) for item in page]


def _by_program(events: Sequence[AuditEvent], prefix: str, pods: int) -> Figures:
    """Return the writes of each program, and all requests of the operator, by pod. Leases are none of a pod's."""
    asked = [(program_of(event), event) for event in events if event.resource != "leases"]
    writes = Counter(program for program, event in asked if event.verb in WRITE_VERBS)
    requests = sum(program == OPERATOR and event.verb != "watch" for program, event in asked)
    found = {f"{prefix}{name}_writes_by_pod": writes[name] / pods for name in (OPERATOR, SCHEDULER, CONTROLLERS)}
    return found | {f"{prefix}operator_requests_by_pod": requests / pods}


def program_of(event: AuditEvent) -> str:
    """Return which program has sent a request; empty for others, the benchmark among them."""
    program = PROGRAMS.get(event.agent.partition("/")[0])
    return program or (OPERATOR if event.user == USER else "")
