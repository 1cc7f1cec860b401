"""The CRD's rules once more, fast: no models, no table, one pass. test_api_server.py compares them with the others."""

from typing import Any

Json = dict[str, Any]

AMOUNTS = ("memoryMiB", "cores", "number")


def broken_rule(new: Json, old: Json | None) -> str | None:
    """Return what a real API server would refuse in the new object, None if it would store it."""
    if new["metadata"]["name"] != new["spec"]["uuid"].lower():
        return "the name is not the UUID"
    if old is not None and new["spec"]["uuid"] != old["spec"]["uuid"]:
        return "the UUID changed"
    status, old_status = new.get("status"), (old or {}).get("status")
    if status is None:
        return "the status was removed" if old_status is not None else None
    holders = status["holders"]
    if old is not None and holders and new["spec"]["nodeName"] != old["spec"]["nodeName"]:
        return "a held card changed its node"
    return _broken_total(new, status, old_status) or _broken_holders(holders)


def _broken_total(new: Json, status: Json, old_status: Json | None) -> str | None:
    used, capacity = status["used"], new["spec"]["capacity"]
    for amount in AMOUNTS:
        if used[amount] != sum([holder[amount] for holder in status["holders"]]):
            return f"{amount}: the total is not the sum"
        if used[amount] > capacity[amount] and used[amount] > (old_status["used"][amount] if old_status else 0):
            return f"{amount}: more than the card has"
    return None


def _broken_holders(holders: list[Json]) -> str | None:
    if len({holder["podUID"] for holder in holders}) < len(holders):
        return "a pod is there twice"
    if len(holders) > 1 and any(holder["exclusive"] for holder in holders):
        return "an exclusive holder is not alone"
    for holder in holders:
        containers = holder["containers"]
        if len({container["name"] for container in containers}) < len(containers):
            return "a container is there twice"
        for container in containers:
            if container["memoryMiB"] > holder["memoryMiB"] or container["cores"] > holder["cores"]:
                return "a container has more than its pod"
    return None
