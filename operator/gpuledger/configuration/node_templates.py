"""Nodes that an autoscaler can add, as the setting `node_templates` describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_TEMPLATES = 32
MOST_CARDS = 64
"""Of a node."""

_Quantity = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]


class NodeTaint(BaseModel):
    """A taint that new nodes have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Annotated[str, Field(min_length=1, max_length=317)]
    value: Annotated[str, Field(max_length=63)] = ""
    effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"


class NewNodes(BaseModel):
    """Nodes that are alike. Their cards are either described, or learned from a node that has these labels."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
    labels: Annotated[dict[str, str], Field(min_length=1, max_length=32)]
    """That they all have, and no other nodes: stand-ins select by them."""
    taints: Annotated[tuple[NodeTaint, ...], Field(max_length=16)] = ()
    most_nodes: Annotated[int, Field(ge=0, le=10_000)] = 100
    """How many nodes with these labels there may be."""
    cards: Annotated[int, Field(ge=0, le=MOST_CARDS)] = 0
    """0: as many as on a node that exists."""
    model: Annotated[str, Field(max_length=253)] = ""
    memory_mib: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Of each card."""
    slots: Annotated[int, Field(ge=0, le=1_024)] = 0
    """Of each card; 0: slots_per_card."""
    cpu: _Quantity | None = None
    memory: _Quantity | None = None
    """Of the node, for pods; None: not known, and never too little."""
    stand_in_requests: Annotated[dict[str, _Quantity], Field(max_length=8)] = {}
    """What a stand-in asks for; empty: the number of cards, as `resource_count`."""

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def is_described(self) -> bool:
        """Return whether its cards are, so that nothing has to be learned."""
        return self.cards > 0 and self.memory_mib > 0
