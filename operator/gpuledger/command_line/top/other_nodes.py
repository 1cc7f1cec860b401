"""Nodes that have GPUs, none of which is in the ledger: another device plugin counts and gives them out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.command_line.cards import FROM_MEMORY
from gpuledger.command_line.cluster_access import ClusterAccess, Objects
from gpuledger.formats.dialects.vocabulary import KNOWN_COUNTS
from gpuledger.formats.objects.host import counted_cards
from gpuledger.model.errors import Denied, NotFound

Json = dict[str, Any]

NODES = "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A node, and how many GPUs it offers to pods under which name."""

    name: str
    resource: str
    gpus: int

    def json(self) -> Json:
        """Return it as `-o json` shows it."""
        return {"node": self.name, "resource": self.resource, "gpus": self.gpus}


def begin_nodes(cluster: ClusterAccess, node: str | None) -> Objects:
    """Start to read all nodes, or the one of this name."""
    only = {"fieldSelector": f"metadata.name={node}"} if node else {}
    return cluster.begin(NODES, FROM_MEMORY | only)


def nodes_read(coming: Iterable[Json]) -> list[Json]:
    """Return nodes; none for a person who may not read them, but may read the ledger. Raises ApiError."""
    try:
        return list(coming)
    except (Denied, NotFound):
        return []


def other_nodes(nodes: Iterable[Mapping[str, Any]], in_ledger: Collection[str]) -> tuple[OtherNode, ...]:
    """Return those of these nodes that offer GPUs and have none in the ledger, by name."""
    found = []
    for node in nodes:
        name = node["metadata"]["name"]
        counts = ((resource, counted_cards(node, resource)) for resource in KNOWN_COUNTS if name not in in_ledger)
        found += [OtherNode(name, resource, gpus) for resource, gpus in counts if gpus][:1]
    return tuple(sorted(found, key=lambda each: each.name))
