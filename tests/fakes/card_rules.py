"""The CRD's rules in Python: what a real API server would refuse, by the same table that the CRD is made from."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from gpuledger.formats.custom_resource import crd
from gpuledger.formats.custom_resource.gpu_allocation import GPUAllocation
from gpuledger.model.errors import Invalid

Json = dict[str, Any]
Check = Callable[[Json, Json | None], bool]
"""New object, old object (None at creation) -> whether the rule allows it."""


def check_card(new: Json, old: Json | None) -> None:
    """Raise Invalid if the schema or a rule refuses the new object."""
    try:
        GPUAllocation.model_validate(new)
    except ValidationError as error:
        raise Invalid(f"schema: {error}", 422) from error
    holders = _holders(new)
    _check_unique("podUID", holders)
    for holder in holders:
        _check_unique("name", holder["containers"])
    for rule, allows in CHECKS.items():
        if not allows(new, old):
            raise Invalid(rule.message, 422)


def _check_unique(key: str, items: list[Json]) -> None:
    values = [item[key] for item in items]
    if len(set(values)) < len(values):
        raise Invalid(f"duplicate value: {key} in {values}", 422)


def _holders(card: Json | None) -> list[Json]:
    return list(((card or {}).get("status") or {}).get("holders") or [])


def _within_capacity(amount: str) -> Check:
    def check(new: Json, old: Json | None) -> bool:
        if "status" not in new:
            return True
        used = new["status"]["used"][amount]
        old_used = ((old or {}).get("status") or {"used": {}})["used"].get(amount, 0)
        return bool(used <= new["spec"]["capacity"][amount] or used <= old_used)

    return check


def _adds_up(amount: str) -> Check:
    def check(new: Json, _: Json | None) -> bool:
        total = sum(holder[amount] for holder in _holders(new))
        return "status" not in new or new["status"]["used"][amount] == total

    return check


def _named_after_uuid(new: Json, _: Json | None) -> bool:
    return bool(new["metadata"]["name"] == new["spec"]["uuid"].lower())


def _uuid_stays(new: Json, old: Json | None) -> bool:
    return old is None or bool(new["spec"]["uuid"] == old["spec"]["uuid"])


def _status_stays(new: Json, old: Json | None) -> bool:
    return "status" not in (old or {}) or "status" in new


def _held_card_stays(new: Json, old: Json | None) -> bool:
    return old is None or new["spec"]["nodeName"] == old["spec"]["nodeName"] or not _holders(new)


def _exclusive_is_alone(new: Json, _: Json | None) -> bool:
    holders = _holders(new)
    return len(holders) == 1 or not any(holder["exclusive"] for holder in holders)


def _containers_within_pod(new: Json, _: Json | None) -> bool:
    return all(
        container[amount] <= holder[amount]
        for holder in _holders(new)
        for container in holder["containers"]
        for amount in ("memoryMiB", "cores")
    )


def _seats_are_kept(new: Json, _: Json | None) -> bool:
    seats = (holder for holder in _holders(new) if holder["podUID"].startswith("seat-"))
    return all("seat" in seat and seat["state"] == "reserved" for seat in seats)


_AMOUNTS = ("memoryMiB", "cores", "number")

CHECKS: dict[crd.Rule, Check] = {
    crd.NAMED_AFTER_ITS_UUID: _named_after_uuid,
    crd.UUID_STAYS: _uuid_stays,
    crd.STATUS_STAYS: _status_stays,
    crd.HELD_CARD_STAYS_ON_ITS_NODE: _held_card_stays,
    crd.EXCLUSIVE_HOLDER_IS_ALONE: _exclusive_is_alone,
    crd.CONTAINERS_WITHIN_THE_POD: _containers_within_pod,
    crd.SEATS_ARE_KEPT: _seats_are_kept,
    **dict(zip(crd.NOTHING_OVER_CAPACITY, map(_within_capacity, _AMOUNTS), strict=True)),
    **dict(zip(crd.TOTALS_ARE_SUMS, map(_adds_up, _AMOUNTS), strict=True)),
}

if set(CHECKS) != {rule for rules in crd.RULES.values() for rule in rules}:
    raise AssertionError("the CRD has other rules than this file knows")
