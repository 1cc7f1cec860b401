"""What may happen to cards. What is there changes at once; the node's report of it is on its way then."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuledger.model.card import Amounts

if TYPE_CHECKING:
    from simulation.world import World


@dataclass(frozen=True)
class CardFails:
    """A card gets sick."""

    uuid: str

    def can(self, world: "World") -> bool:
        card = world.nodes.card(self.uuid)
        return card is not None and card.healthy

    def do(self, world: "World") -> None:
        card = world.nodes.card(self.uuid)
        if card is not None:
            world.nodes.change(replace(card, healthy=False))


@dataclass(frozen=True)
class CardShrinks:
    """A card has less memory than it had, whatever is held of it."""

    uuid: str
    memory_mib: int

    def can(self, world: "World") -> bool:
        card = world.nodes.card(self.uuid)
        return card is not None and card.capacity.memory_mib > self.memory_mib

    def do(self, world: "World") -> None:
        card = world.nodes.card(self.uuid)
        if card is not None:
            capacity = Amounts(self.memory_mib, card.capacity.cores, card.capacity.number)
            world.nodes.change(replace(card, capacity=capacity))


@dataclass(frozen=True)
class CardRecovers:
    """A card works again, with all its memory."""

    uuid: str

    def can(self, world: "World") -> bool:
        return world.nodes.card(self.uuid) != world.nodes.whole(self.uuid)

    def do(self, world: "World") -> None:
        whole = world.nodes.whole(self.uuid)
        if whole is not None:
            world.nodes.change(whole)


@dataclass(frozen=True)
class CardVanishes:
    """A card falls off the bus: its node does not see it any more."""

    uuid: str

    def can(self, world: "World") -> bool:
        return world.nodes.card(self.uuid) is not None

    def do(self, world: "World") -> None:
        world.nodes.take_out(self.uuid)


@dataclass(frozen=True)
class CardComes:
    """A card is there that was gone, or in another node until then. Either node may report it first."""

    uuid: str
    node_name: str

    def can(self, world: "World") -> bool:
        card = world.nodes.card(self.uuid)
        return card is None or card.node_name != self.node_name

    def do(self, world: "World") -> None:
        if world.nodes.card(self.uuid) is not None:
            world.nodes.take_out(self.uuid)
        world.nodes.put_in(self.uuid, self.node_name)
