"""Nodes and gangs for `top`, read beside the ledger.

Nodes are read for those that are cordoned, and those whose GPUs are not in the ledger: another device plugin counts and
gives out these. The ledger does not know gangs, so pods are read for the gangs that hold cards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpuledger.command_line.cluster_access import ClusterAccess, Objects
from gpuledger.command_line.output import FROM_MEMORY
from gpuledger.formats.dialects.vocabulary import KNOWN_COUNTS
from gpuledger.formats.kubernetes.gang import NAMING_LABELS, gang_name_of
from gpuledger.formats.kubernetes.quantity import counted_cards
from gpuledger.model.errors import BadInput, Denied, NotFound
from gpuledger.model.gang import GangName
from gpuledger.model.json_object import Json
from gpuledger.reports.cards import CardReport

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


def gang_named(text: str) -> GangName:
    """Return the gang in NAMESPACE/NAME. Raises BadInput."""
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise BadInput(f"{text!r} is no gang: write NAMESPACE/NAME")
    return GangName(namespace, name)


def begin_members(cluster: ClusterAccess, gang: GangName | None) -> Iterable[Json]:
    """Start to read the pods that may be of this gang; without one, those that name theirs by a label.

    Who is named by an annotation or a field can't be selected, and reading all pods would take longer than the rest.
    """
    if gang:
        return cluster.begin(f"/api/v1/namespaces/{gang.namespace}/pods", FROM_MEMORY)
    coming = [cluster.begin("/api/v1/pods", FROM_MEMORY | {"labelSelector": label}) for label in NAMING_LABELS]
    return chain.from_iterable(coming)


def gangs_read(coming: Iterable[Json], wanted: GangName | None) -> dict[str, str]:
    """Return the UID of each member of this gang, or of any -> the name of that.

    Nobody, for a person who may not read the pods of all namespaces, but may read the ledger. Raises ApiError.
    """
    try:
        found = ((pod["metadata"]["uid"], gang_name_of(pod)) for pod in coming)
        return {uid: gang.name for uid, gang in found if gang and (wanted is None or gang[:2] == wanted[:2])}
    except (Denied, NotFound):
        if wanted:
            raise
        return {}


def held_by_gangs(reports: Iterable[CardReport]) -> Iterator[CardReport]:
    """Yield the cards of which a gang that is known holds a part."""
    return (report for report in reports if report.gangs)
