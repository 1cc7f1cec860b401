"""Names of pods, gangs, cards and nodes for the shell to complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.command_line.cards import all_cards
from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.formats.kubernetes.gang import gang_name_of


def names(cluster: ClusterAccess, kinds: Iterable[str], incomplete: str, namespace: str | None) -> list[str]:
    """Return what a word can become: first a kind, then "card/GPU-...". Raises BadInput and ApiError."""
    kind, slash, begin = incomplete.partition("/")
    if not slash:
        return [f"{each}/" for each in kinds if each.startswith(kind)]
    if kind not in kinds:
        return []
    return [f"{kind}/{name}" for name in _of_kind(cluster, kind, namespace) if name.lower().startswith(begin.lower())]


def _of_kind(cluster: ClusterAccess, kind: str, namespace: str | None) -> Iterator[str]:
    if kind == "pod":
        path = f"/api/v1/namespaces/{namespace or cluster.namespace()}/pods"
        yield from (item["metadata"]["name"] for item in cluster.begin(path))
        return
    if kind == "gang":
        path = f"/api/v1/namespaces/{namespace or cluster.namespace()}/pods"
        yield from sorted({gang.name for item in cluster.begin(path) if (gang := gang_name_of(item))})
        return
    field = "uuid" if kind == "card" else "nodeName"
    yield from sorted({str(item["spec"][field]) for item in all_cards(cluster)})
