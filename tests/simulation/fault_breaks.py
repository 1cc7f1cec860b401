"""Safeguards against what happens to nodes, cards, the API server and its clients, and how each is taken away."""

import asyncio
from dataclasses import replace
from typing import Any

from gpuledger.model.share import Holder
from gpuledger.workflows.binding.device_plugin_queue import DevicePluginQueue
from gpuledger.workflows.inventory import InventoryKeeper
from gpuledger.workflows.lifecycles import Deadlines, unix_s
from gpuledger.workflows.observe_cluster import ClusterObserver
from gpuledger.workflows.preemption.execute import Evictor
from gpuledger.workflows.preemption.for_scheduler import PreemptionStarter
from simulation import api_server, card_checks
from simulation.api_server import ApiServer
from simulation.breaks import Break, Json, Patch
from simulation.explorers import Mood, Rule

ACTIVE = Mood(swap_rate=0.3, act_rate=0.3)
"""Much is done, and everything is late at times."""


def cards_not_looked_at_again(patch: Patch) -> None:
    patch.setattr(DevicePluginQueue, "check_cards", lambda self, placement: None)


def given_up_for_good(patch: Patch) -> None:
    patch.setattr(InventoryKeeper, "_offer_to_others", lambda self, uuid: None)
    patch.setattr(InventoryKeeper, "_mark_claimant", lambda self, card: None)


def deleted_in_any_version(patch: Patch) -> None:
    delete = ApiServer._delete_card
    patch.setattr(
        ApiServer, "_delete_card", lambda self, card, version: delete(self, card, card["metadata"]["resourceVersion"])
    )


def moved_with_holders(patch: Patch) -> None:
    """Either alone is enough: that the operator leaves a card that is held where it is, and the rule of the CRD."""
    rules = card_checks.broken_rule

    def but_one(new: Json, old: Json | None) -> str | None:
        return rules(new, old and {**old, "spec": {**old["spec"], "nodeName": new["spec"]["nodeName"]}})

    patch.setattr(api_server, "broken_rule", but_one)
    patch.setattr(InventoryKeeper, "_other_owner", lambda self, card: None)


def wall_clock_believed(patch: Patch) -> None:
    def seconds_left(self: Deadlines, holder: Holder) -> float:
        return unix_s(holder.deadline) - self._clock.wall().timestamp() if holder.deadline else 0.0

    patch.setattr(Deadlines, "seconds_left", seconds_left)


def deleted_despite_budgets(patch: Patch) -> None:
    init: Any = Evictor.__attrs_pre_init__

    def ruthless(self: Evictor, *arguments: Any) -> None:
        init(self, *arguments)
        self._settings = replace(self._settings, preempt_despite_budgets=True)

    patch.setattr(Evictor, "__attrs_pre_init__", ruthless)


def told_before_claimed(patch: Patch) -> None:
    async def claim(self: PreemptionStarter, *arguments: object) -> None:
        """Claim nothing."""

    patch.setattr(PreemptionStarter, "claim", claim)


def never_compared(patch: Patch) -> None:
    async def resync_every(self: ClusterObserver, interval_s: float | None, needed: asyncio.Event) -> None:
        """Find nothing that watches have missed."""
        await asyncio.Event().wait()

    patch.setattr(ClusterObserver, "resync_every", resync_every)


A_RUNS = Rule("scheduler 1: sees MODIFIED pod a", skip=1, act=True)

FAULT_BREAKS = [
    Break("the last look at the cards", cards_not_looked_at_again, "a card fails", "has seen sick or gone"),
    Break("what a node gives up", given_up_for_good, "a card moves", "has no object", ACTIVE),
    Break("the version of a card that is deleted", deleted_in_any_version, "a card vanishes", "pods hold it", ACTIVE),
    Break(
        "the node of a card that is held",
        moved_with_holders,
        "a card moves",
        "on two nodes",
        plan=(A_RUNS, Rule("operator 1: sees MODIFIED card gpu-node-a-0", skip=3, act=True)),
    ),
    Break(
        "the time that is counted by the loop",
        wall_clock_believed,
        "a clock jumps while others leave",
        "is taken back",
        plan=(Rule("operator 1: write status of card gpu-node-a-0 (adds uid-h)", act=True),),
    ),
    Break(
        "the word of a budget",
        deleted_despite_budgets,
        "a budget protects who is to leave",
        "deletes a pod",
        plan=(Rule("operator 1: evict pod", act=True),),
    ),
    Break(
        "the claim before kube-scheduler is told of victims",
        told_before_claimed,
        "kube-scheduler preempts",
        "nothing is kept for it there",
        plan=(Rule("nothing"),),
    ),
    Break(
        "the comparison with full lists",
        never_compared,
        "a name returns",
        "for bound and alive",
        plan=(A_RUNS, Rule("operator 1: hears of write status", skip=2, way=2)),
    ),
]
