"""What the pods of the namespace have together, where a scenario has a quota for it."""

from typing import TYPE_CHECKING, Any

from simulation.readings import devices, lives_bound

if TYPE_CHECKING:
    from simulation.scenario import Wish
    from simulation.world import World

Json = dict[str, Any]


def quota_object(most_mib: int) -> Json:
    """Return the ResourceQuota, as the API server has it."""
    metadata = {"uid": "uid-of-quota", "name": "gpus", "namespace": "default"}
    return {"metadata": metadata, "spec": {"hard": {"limits.nvidia.com/gpumem": str(most_mib)}}}


def exceeded(world: "World") -> str:
    """Return by how much bound pods exceed the quota.

    What others hold may be given back, and so may what a pod holds that it was not told of: another operator, which
    wanted to bind it as well, has entered that.
    """
    told = {pod["metadata"]["uid"]: devices(pod) for pod in world.api.pods.values() if lives_bound(pod)}
    used_mib = sum(each["memoryMiB"] for uuid, each in _holders(world) if uuid in told.get(each["podUID"], ()))
    quota_mib = world.scenario.quota_mib
    return f"bound pods have {used_mib} MiB, beyond the quota of {quota_mib}" if 0 < quota_mib < used_mib else ""


def allows(world: "World", wish: "Wish", card_mib: int) -> bool:
    """Return whether the quota has room for a pod, beside all that is held."""
    used_mib = sum(each["memoryMiB"] for _, each in _holders(world))
    asked_mib = wish.cards * (wish.memory_mib or card_mib)
    return not world.scenario.quota_mib or bool(used_mib + asked_mib <= world.scenario.quota_mib)


def _holders(world: "World") -> list[tuple[str, Json]]:
    cards = world.api.cards.values()
    return [(card["spec"]["uuid"], each) for card in cards for each in (card.get("status") or {}).get("holders") or ()]
