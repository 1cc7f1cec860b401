"""What `top` reads of Nodes: which are cordoned, and which have GPUs of which none is in the ledger.

The GPUs of the latter are counted and given out by another device plugin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.command_line.cards import FROM_MEMORY
from gpuledger.command_line.cluster_access import ClusterAccess, Objects
from gpuledger.formats.dialects.vocabulary import KNOWN_COUNTS
from gpuledger.formats.kubernetes.host import counted_cards
from gpuledger.model.errors import Denied, NotFound
from gpuledger.model.json_object import Json

NODES = "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A node, and how many GPUs it offers to pods under which name."""

    name: str
    resource: str
    gpus: int
    cordoned: bool = False

    def json(self) -> Json:
        """Return it as `-o json` shows it."""
        cordoned = {"unschedulable": True} if self.cordoned else {}
        return {"node": self.name, "resource": self.resource, "gpus": self.gpus, **cordoned}


def begin_nodes(cluster: ClusterAccess, node: str | None, only_cordoned: bool = False) -> Objects:
    """Start to read all nodes, or the one of this name; or of these, those that are cordoned."""
    return cluster.begin(NODES, FROM_MEMORY | nodes_selected(node, only_cordoned))


def nodes_selected(node: str | None, only_cordoned: bool) -> dict[str, str]:
    """Return the parameters that select these nodes."""
    fields = [*([f"metadata.name={node}"] if node else []), *(["spec.unschedulable=true"] if only_cordoned else [])]
    return {"fieldSelector": ",".join(fields)} if fields else {}


def nodes_read(coming: Iterable[Json]) -> list[Json] | None:
    """Return nodes; None for a person who may not read them, but may read the ledger. Raises ApiError."""
    try:
        return list(coming)
    except (Denied, NotFound):
        return None


def is_cordoned(node: Mapping[str, Any]) -> bool:
    """Return whether a person, or a controller, wants no new pods on a node."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def cordoned_nodes(nodes: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of those of these nodes that are cordoned."""
    return frozenset(node["metadata"]["name"] for node in nodes if is_cordoned(node))


def other_nodes(nodes: Iterable[Mapping[str, Any]], in_ledger: Collection[str]) -> tuple[OtherNode, ...]:
    """Return those of these nodes that offer GPUs and have none in the ledger, by name."""
    found = []
    for node in nodes:
        name = node["metadata"]["name"]
        counts = ((resource, counted_cards(node, resource)) for resource in KNOWN_COUNTS if name not in in_ledger)
        found += [OtherNode(name, resource, gpus, is_cordoned(node)) for resource, gpus in counts if gpus][:1]
    return tuple(sorted(found, key=lambda each: each.name))
