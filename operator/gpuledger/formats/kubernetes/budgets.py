"""Budgets of namespaces: how many card hours their pods may have in a day, a week or a month. Keys of a ResourceQuota.

Kubernetes stores keys of other domains in `spec.hard` and leaves them alone; their amounts are whole numbers. A dot and
a part of a model's name restrict a key to cards of that model, as with limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from gpuledger.formats.kubernetes.other import SCOPED
from gpuledger.formats.quantity import whole_number
from gpuledger.model.errors import BadInput, did_you_mean
from gpuledger.model.gang import Counted, QuotaLimit, dashed
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.usage import Budget, Period

BEGINNING: Final = "gpuledger.dev/"

KEYS: Final = {
    "gpuledger.dev/card-hours-per-day": Period.DAY,
    "gpuledger.dev/card-hours-per-week": Period.WEEK,
    "gpuledger.dev/card-hours-per-month": Period.MONTH,
}
"""A dot and a model can follow."""

WHEN_SPENT: Final = "gpuledger.dev/budget-spent"
"""Annotation of a ResourceQuota: what running pods of its namespace do when one of its budgets is spent."""

WAYS: Final = {"stay": False, "evict": True}
"""Values of the annotation -> whether pods are evicted."""

MOST_BUDGETS: Final = 16
"""Of one ResourceQuota."""


def budgets_of(quota: JsonMapping, kept_days: int = Period.MONTH.days) -> tuple[list[Budget], list[str]]:
    """Return the budgets of a ResourceQuota, and sentences on what can't be used. Other keys are not ours.

    `kept_days` is for how many days records of what was held are kept.
    """
    metadata, spec = quota.get("metadata") or {}, quota.get("spec") or {}
    found: list[Budget] = []
    problems: list[str] = []
    evicts = False
    for key, said in sorted((spec.get("hard") or {}).items()):
        if not key.startswith(BEGINNING):
            continue
        try:
            period, model = _read(key)
            _check(quota, period, kept_days, len(found))
            evicts = _evicts(metadata)
            hours = whole_number(said)
        except BadInput as error:
            problems.append(f"{key}: {error}")
            if len(problems) == MOST_BUDGETS:
                break
            continue
        found.append(Budget(str(metadata.get("name") or ""), key, period, hours, model, evicts))
    return found, problems


def _read(key: str) -> tuple[Period, str]:
    """Return the period and the model that a key names. Raises BadInput."""
    word, _, model = key.removeprefix(BEGINNING).partition(".")
    name = BEGINNING + word
    if name not in KEYS:
        raise BadInput(f"gpuledger has no such budget{did_you_mean(name, KEYS)}")
    return KEYS[name], dashed(model)


def _check(quota: JsonMapping, period: Period, kept_days: int, number: int) -> None:
    """Raise BadInput if a budget of a period can't be kept."""
    spec = quota.get("spec") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        raise BadInput(SCOPED)
    if number == MOST_BUDGETS:
        raise BadInput(f"it is one budget more than {MOST_BUDGETS} that are read")
    if kept_days < period.days:
        raise BadInput(
            f"records of what was held are kept for {kept_days} days, and it takes those of {period.days}: "
            f"whoever administers gpuledger has to raise usage_kept_days"
        )


def _evicts(metadata: JsonMapping) -> bool:
    said = (metadata.get("annotations") or {}).get(WHEN_SPENT, "stay")
    if said not in WAYS:
        raise BadInput(f"the annotation {WHEN_SPENT} is {str(said)[:64]!r}, which is none of {', '.join(WAYS)}")
    return WAYS[said]


def spent_limit(budget: Budget, when: str) -> QuotaLimit:
    """Return the limit that a spent budget is: no more than pods have. `when` says from when on there is more."""
    of_model = f" of {budget.model} cards" if budget.model else ""
    hours = f"its {budget.card_hours:,} card hours{of_model} of this {budget.period}"
    leave = ", so that its pods are evicted" if budget.evicts else ""
    text = f"{hours} are spent{leave}, and there are new ones {when}"
    return QuotaLimit(budget.quota, budget.key, Counted.SLOTS, 0, "", budget.model, spent=text)


def hours_shown(quota: JsonMapping, budgets: Iterable[Budget]) -> dict[str, int]:
    """Return the used card hours of these budgets in a ResourceQuota's status, by their keys, as far as it has them."""
    said: Mapping[str, object] = (quota.get("status") or {}).get("used") or {}
    found: dict[str, int] = {}
    for budget in budgets:
        with suppress(BadInput):
            found[budget.key] = whole_number(said.get(budget.key))
    return found


def shown_as_spent(quota: JsonMapping, budgets: Collection[Budget]) -> list[QuotaLimit]:
    """Return the limits of those budgets that a ResourceQuota's status shows as spent."""
    shown = hours_shown(quota, budgets)
    spent = (budget for budget in budgets if shown.get(budget.key, -1) >= budget.card_hours)
    return [spent_limit(budget, "when that is over") for budget in spent]
