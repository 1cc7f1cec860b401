"""Which gangs hold cards: the ledger does not say it, so the pods are read that do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from gpuledger.command_line.cards import FROM_MEMORY
from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.formats.kubernetes.gang import NAMING_LABELS, gang_name_of
from gpuledger.model.errors import BadInput, Denied, NotFound
from gpuledger.model.gang import GangName
from gpuledger.model.json_object import Json
from gpuledger.reports.cards import CardReport


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
