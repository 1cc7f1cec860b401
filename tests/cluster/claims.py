"""ResourceClaims in tests: objects, and nodes that serve them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.cluster import NODES, Cluster, container, pod
from cluster.kubernetes import CLAIMS_NAME_AMOUNTS
from gpuledger.agent.simulated import FakeNode
from gpuledger.formats.quantity import amount
from gpuledger.formats.resource_claims.claims import DEVICE_CLASS, DRIVER, SERVES_CLAIMS_ANNOTATION

Json = dict[str, Any]

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
CLASSES = f"{API}/deviceclasses"

OUR_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DEVICE_CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def request(name: str = "gpu", **exactly: object) -> Json:
    """Return a request of a claim, by default for one whole card."""
    return {"name": name, "exactly": {"deviceClassName": DEVICE_CLASS, **exactly}}


def share(memory: str = "", cores: int | None = None, name: str = "gpu", **exactly: object) -> Json:
    """Return a request for a share of a card."""
    amounts = {"memory": memory} if memory else {}
    if cores is not None:
        amounts["cores"] = str(cores)
    return request(name, capacity={"requests": amounts}, **exactly)


def opaque(**parameters: object) -> Json:
    """Return a configuration with parameters of our driver."""
    share = {"apiVersion": "gpuledger.dev/v1alpha1", "kind": "Share", **parameters}
    return {"opaque": {"driver": DRIVER, "parameters": share}}


def claim_spec(*requests: Json, **devices: Any) -> Json:
    """Return the spec of a claim: where requests can't say amounts, its configuration says them."""
    config = [] if CLAIMS_NAME_AMOUNTS else [found for each in requests for found in _configured_amounts(each)]
    config += list(devices.pop("config", []))
    return {"devices": {"requests": list(requests), **devices, **({"config": config} if config else {})}}


def _configured_amounts(request: Json) -> list[Json]:
    """Return the amounts of a request and of its alternatives as configuration."""
    parts = [(request["name"], request["exactly"])] if "exactly" in request else []
    parts += [(f"{request['name']}/{each['name']}", each) for each in request.get("firstAvailable", [])]
    found = []
    for name, part in parts:
        asked = part.get("capacity", {}).get("requests", {})
        amounts = {"memoryMiB": -(-amount(asked["memory"], 1) // 2**20)} if "memory" in asked else {}
        amounts |= {"cores": amount(asked["cores"], 1)} if "cores" in asked else {}
        if amounts:
            found.append({"requests": [name], **opaque(**amounts)})
    return found


def claim(name: str, *requests: Json, **devices: object) -> Json:
    """Return a ResourceClaim that pods can name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": claim_spec(*requests, **devices),
    }


def template(name: str, *requests: Json, **devices: object) -> Json:
    """Return a ResourceClaimTemplate."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": claim_spec(*requests, **devices)},
    }


def claiming(
    name: str,
    templates: Sequence[str] = (),
    named: Sequence[str] = (),
    limits: Mapping[str, object] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod of our profile whose container `user` uses claims: `c0`, `c1`, in this order.

    Limits are those of another container: one asks for cards in one way.
    """
    claims = [{"resourceClaimTemplateName": each} for each in templates] + [
        {"resourceClaimName": each} for each in named
    ]
    listed = [{"name": f"c{number}", **each} for number, each in enumerate(claims)]
    user = {**container({}, "user"), "resources": {"claims": [{"name": each["name"]} for each in listed]}}
    return pod(name, *([container(limits)] if limits else []), user, resourceClaims=listed, **spec)


def create_class(cluster: Cluster) -> None:
    """Create our DeviceClass, if it is not there."""
    if not any(each["metadata"]["name"] == DEVICE_CLASS for each in cluster.request("GET", CLASSES)["items"]):
        cluster.request("POST", CLASSES, OUR_CLASS)


def remove_claims(cluster: Cluster) -> None:
    """Remove all pods and nodes, and then what pods can claim; our DeviceClass stays."""
    cluster.clear()
    for path in (CLAIMS, TEMPLATES):
        cluster.request("DELETE", path)
    for each in cluster.request("GET", CLASSES)["items"]:
        if each["metadata"]["name"] != DEVICE_CLASS:
            cluster.request("DELETE", f"{CLASSES}/{each['metadata']['name']}")
    cluster.wait(lambda: not claims(cluster), "all claims are gone")


def serve_claims(cluster: Cluster, *nodes: FakeNode) -> None:
    """Say of simulated nodes that they serve claims, as their agents do."""
    for node in nodes:
        change = {"metadata": {"annotations": {SERVES_CLAIMS_ANNOTATION: "true"}}}
        cluster.patch(f"{NODES}/{node.name}", change)


def claims(cluster: Cluster) -> dict[str, Json]:
    """Return name -> ResourceClaim, in the default namespace."""
    return {each["metadata"]["name"]: each for each in cluster.request("GET", CLAIMS)["items"]}


def claims_of(cluster: Cluster, pod_name: str) -> list[Json]:
    """Return the claims of a pod, in its order."""
    found = cluster.pod(pod_name)
    made = {each["name"]: each["resourceClaimName"] for each in found["status"].get("resourceClaimStatuses", [])}
    names = [made.get(each["name"]) or each["resourceClaimName"] for each in found["spec"]["resourceClaims"]]
    stored = claims(cluster)
    return [stored[name] for name in names]


def results(claim: Json) -> list[Json]:
    """Return what a claim was given, in the order of its requests."""
    return list(((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", []))


def wait_all_refused(cluster: Cluster, *names: str) -> dict[str, list[str]]:
    """Wait until kube-scheduler has said of each of the pods why it waits; return what it has said."""
    said: dict[str, list[str]] = {}

    def refused() -> bool:
        said.clear()
        for each in cluster.request("GET", "/api/v1/namespaces/default/events")["items"]:
            if each["reason"] == "FailedScheduling":
                said.setdefault(each["involvedObject"]["name"], []).append(each["message"])
        return said.keys() >= set(names)

    cluster.wait(refused, f"{names} are refused")
    pods = cluster.pods()
    assert not [name for name in names if pods[name]["spec"].get("nodeName")]
    return said


Amounts = dict[tuple[str, str], tuple[int, int, int]]
"""Request and device -> MiB, cores and slots."""


def held_by_claim(cluster: Cluster) -> dict[str, Amounts]:
    """Return UID of a claim -> what the ledger has for it; each request and card once."""
    found: dict[str, Amounts] = defaultdict(dict)
    for uuid, card in cluster.cards().items():
        whole = card["spec"]["capacity"]
        for holder in (card.get("status") or {}).get("holders", []):
            for entry in holder["containers"]:
                if "claim" in entry:
                    place = (entry["name"].partition("/")[2], uuid.lower())
                    held = found[entry["claim"]["uid"]]
                    assert place not in held, f"{place} is held twice"
                    others = (whole["cores"], whole["number"]) if holder["exclusive"] else (entry["cores"], 1)
                    held[place] = (entry["memoryMiB"], *others)
    return dict(found)


def allocated(claim: Json, cards: Mapping[str, Json]) -> Amounts:
    """Return what a claim has of each of its cards, which are given by UUID as the ledger has them.

    Its status says so. Before Kubernetes 1.36 that has no amounts: they are those of the configuration in it.
    """
    whole = {uuid.lower(): card["spec"]["capacity"] for uuid, card in cards.items()}
    found: Amounts = {}
    for result in results(claim):
        assert result["driver"] == DRIVER
        request, device = result["request"], result["device"]
        if CLAIMS_NAME_AMOUNTS:
            consumed = {name: amount(quantity, 1) for name, quantity in result["consumedCapacity"].items()}
            found[request, device] = (consumed["memory"] // 2**20, consumed["cores"], consumed["slots"])
        else:
            found[request, device] = _configured(claim, request, whole[device])
    return found


def _configured(claim: Json, request: str, capacity: Mapping[str, int]) -> tuple[int, int, int]:
    said: Json = {}
    for each in claim["status"]["allocation"]["devices"].get("config", []):
        if not each.get("requests") or {request, request.partition("/")[0]} & set(each["requests"]):
            said |= each["opaque"]["parameters"]
    memory_mib = said.get("memoryMiB", capacity["memoryMiB"] * said.get("memoryPercent", 100) // 100)
    alone = said.get("exclusive") or said.get("cores") == capacity["cores"]
    if alone or not {"memoryMiB", "memoryPercent", "cores"} & said.keys():
        return memory_mib, capacity["cores"], capacity["number"]
    return memory_mib, said.get("cores", 0), 1


def check_claims(cluster: Cluster) -> None:
    """Compare claims with the ledger and with pods: what is allocated is held, and used by those that may use it."""
    held, cards = held_by_claim(cluster), cluster.cards()
    stored = {each["metadata"]["uid"]: each for each in claims(cluster).values()}
    assert held.keys() <= stored.keys(), "the ledger has shares of claims that are gone"
    pods = {each["metadata"]["uid"]: each for each in cluster.pods().values()}
    holders = {holder["podUID"] for listed in cluster.holders().values() for holder in listed}
    for uid, found in stored.items():
        name = found["metadata"]["name"]
        assert allocated(found, cards) == held.get(uid, {}), name
        users = {each["uid"] for each in (found.get("status") or {}).get("reservedFor", [])}
        assert users <= pods.keys(), f"{name} is reserved for pods that are gone"
        assert bool(users) == bool(held.get(uid)), name
        assert not users or users & holders, f"no user of {name} holds cards"
    for each in pods.values():
        if each["spec"].get("nodeName") and each["spec"].get("resourceClaims") and not has_ended(each):
            for found in claims_of(cluster, each["metadata"]["name"]):
                users = {user["uid"] for user in (found.get("status") or {}).get("reservedFor", [])}
                assert each["metadata"]["uid"] in users, each["metadata"]["name"]


def has_ended(found: Json) -> bool:
    """Return whether a pod is finished."""
    return found["status"].get("phase") in ("Succeeded", "Failed")
