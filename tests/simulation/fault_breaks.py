"""Safeguards against what happens to nodes, cards, the API server and its clients, and how each is taken away."""

from gpuledger.workflows.binding.plugin_turns import PluginTurns
from gpuledger.workflows.inventory.inventory import InventoryKeeper
from simulation import api_server
from simulation.api_server import ApiServer
from simulation.breaks import Break, Json, Patch
from simulation.card_checks import broken_rule
from simulation.explorers import Mood, Rule

ACTIVE = Mood(swap_rate=0.3, act_rate=0.3)
"""Much is done, and everything is late at times."""


def cards_not_looked_at_again(patch: Patch) -> None:
    patch.setattr(PluginTurns, "check_cards", lambda self, placement: None)


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
    rules = broken_rule

    def but_one(new: Json, old: Json | None) -> str | None:
        return rules(new, old and {**old, "spec": {**old["spec"], "nodeName": new["spec"]["nodeName"]}})

    patch.setattr(api_server, "broken_rule", but_one)
    patch.setattr(InventoryKeeper, "_other_owner", lambda self, card: None)


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
]
