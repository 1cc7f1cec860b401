"""The cost of evicting pods, and its order.

Source of the order: kube-scheduler, pickOneNodeForPreemption (pkg/scheduler/framework/preemption/preemption.go).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

LOWEST_PRIORITY = -(2**31)
"""No pod's priority is lower. It is taken off before priorities are summed up, as kube-scheduler does, so that more
pods cost more even where their priorities are negative."""

NOT_STARTED_S = 2**40
"""Stands for the start of a pod that has not started, in Unix seconds: later than all others, as in kube-scheduler,
which takes the present time."""

Cost = tuple[int, int, int, int, int]
"""Violations of budgets, highest priority of a victim, sum of the priorities above the lowest one, number of victims,
and minus the earliest start in Unix seconds among the victims of the highest priority. The lower is better.

One more victim always makes it larger: none of the first three gets smaller by it, and the fourth grows. So a set of
victims costs more than each set that it contains, and a search may give up what costs too much already."""

FREE: Cost = (0, LOWEST_PRIORITY, 0, 0, -NOT_STARTED_S)
"""No pod has to leave. It is less than every other cost, and adds nothing to one."""

Low = tuple[int, int, int, int]
"""A lower bound of the first four numbers of a cost."""

NONE: Low = FREE[:4]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod on a node that could be asked to leave, or leaves anyway; or several that leave together, see `together`.

    Then `priority` is their highest, `started_s` tells of those that have it, and each of their budgets is named as
    often as it covers one of them.
    """

    uid: str
    priority: int
    started_s: int = 0
    """Unix seconds, 0 if it has not started or that is unknown; then it is taken as having started last."""
    budgets: tuple[str, ...] = ()
    """Names of the PodDisruptionBudgets that cover it, each once."""
    leaves: bool = False
    """It goes anyway: it costs nothing, and is not a victim."""
    pods: tuple[str, ...] = ()
    """UIDs of those that leave together, here and on other nodes; empty for a pod that leaves by itself."""
    weight: int | None = None
    """The sum of their priorities above the lowest one; None for that of one pod."""

    @property
    def uids(self) -> tuple[str, ...]:
        """Return the UIDs of all who leave."""
        return self.pods or (self.uid,)

    @property
    def above_lowest(self) -> int:
        """Return the sum of priorities above the lowest one that is counted."""
        return self.priority - LOWEST_PRIORITY if self.weight is None else self.weight

    @property
    def begin_s(self) -> int:
        """Return the start in Unix seconds that counts."""
        return self.started_s or NOT_STARTED_S


def together(tenants: Sequence[Tenant]) -> Tenant:
    """Return pods that leave together, such as those of a gang, as one tenant that costs as much as all of them."""
    first = min(tenants, key=lambda tenant: tenant.uid)
    highest = max(tenant.priority for tenant in tenants)
    begin_s = min(tenant.begin_s for tenant in tenants if tenant.priority == highest)
    return Tenant(
        first.uid,
        highest,
        0 if begin_s == NOT_STARTED_S else begin_s,
        tuple(sorted(name for tenant in tenants for name in tenant.budgets)),
        pods=tuple(sorted(uid for tenant in tenants for uid in tenant.uids)),
        weight=sum(tenant.above_lowest for tenant in tenants),
    )


def cost_of(victims: Collection[Tenant], allowed: Mapping[str, int]) -> Cost:
    """Return what it costs that these pods leave; those that leave anyway cost nothing.

    `allowed` tells how many evictions each budget allows now, by its name; less than none, and a budget that it does
    not name, are none. Each victim beyond that is a violation, once for each of its budgets. kube-scheduler counts a
    pod that violates two budgets once, and its count depends on the order in which it looks at the pods.
    """
    counted = [tenant for tenant in victims if not tenant.leaves]
    if not counted:
        return FREE
    covered = Counter(name for tenant in counted for name in tenant.budgets)
    violations = sum(max(0, number - max(0, allowed.get(name, 0))) for name, number in covered.items())
    highest = max(tenant.priority for tenant in counted)
    above_lowest = sum(tenant.above_lowest for tenant in counted)
    begin_s = min(tenant.begin_s for tenant in counted if tenant.priority == highest)
    return violations, highest, above_lowest, sum(len(tenant.uids) for tenant in counted), -begin_s


def joined(one: Cost, other: Cost) -> Cost:
    """Return the cost of two sets without a common victim, if their violations just add up."""
    if one[1] < other[1]:
        one, other = other, one
    last = max(one[4], other[4]) if one[1] == other[1] else one[4]
    return one[0] + other[0], one[1], one[2] + other[2], one[3] + other[3], last


def at_least(cost: Cost, low: Low) -> Cost:
    """Return what a cost becomes at least when something is added.

    The earliest start can only become earlier, unless there is a new highest priority.
    """
    last = cost[4] if low[1] <= cost[1] else FREE[4]
    return cost[0] + low[0], max(cost[1], low[1]), cost[2] + low[2], cost[3] + low[3], last
