"""Reads what `top --by` shows beside the ledger: pods, quotas and queues, as far as the account may read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gpuledger.command_line.cards import FROM_MEMORY, begin_cards, uncollected
from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.top.teams import namespace_rows, namespace_table, queue_rows, queue_table
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.dialects.vocabulary import HAMI, KOORDINATOR, VOLCANO, VOLCANO_CLASSIC, Dialects
from gpuledger.formats.kubernetes.condition import ALLOCATED, condition_of
from gpuledger.formats.kubernetes.host import resources_asked
from gpuledger.formats.kubernetes.other import limits_of
from gpuledger.formats.kubernetes.workload import CLUSTER_QUEUE_LABEL, GROUP, cluster_queue_of, queue_state
from gpuledger.model.errors import Denied, NotFound
from gpuledger.model.gang import QuotaLimit
from gpuledger.model.json_object import Json
from gpuledger.reports.cards import CardReport, report_of_stored
from gpuledger.reports.tables import Terminal

PODS, QUOTAS = "/api/v1/pods", "/api/v1/resourcequotas"
CLUSTER_QUEUES = f"/apis/{GROUP}/clusterqueues"
WITHOUT_NODE = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}

WORDS = Dialects((HAMI, VOLCANO, VOLCANO_CLASSIC, KOORDINATOR))
"""As they are without settings, whose reading takes longer than everything else here."""


class Teams:
    """One reading of a view: its table, its data, and what could not be read."""

    def __init__(self, cluster: ClusterAccess, by: str, sort: str | None) -> None:
        """Read. Raises BadInput without the CRD, ApiError."""
        self.by = by
        self.notes: list[str] = []
        cards = begin_cards(cluster)
        if by == "namespace":
            quotas = cluster.begin(QUOTAS, FROM_MEMORY)
            waiting = cluster.begin(PODS, FROM_MEMORY | WITHOUT_NODE)
            reports = _reports(cards)
            limits, pods = self._limits(quotas), self._read(waiting, "pods")
            self._namespaces = namespace_rows(reports, limits, None if pods is None else _waiting(pods), sort)
        else:
            queues = cluster.begin(CLUSTER_QUEUES)
            queued = cluster.begin(PODS, FROM_MEMORY | {"labelSelector": CLUSTER_QUEUE_LABEL})
            reports = _reports(cards)
            states = map(queue_state, self._read(queues, "clusterqueues.kueue.x-k8s.io") or ())
            pods = self._read(queued, "pods")
            queue_of = None if pods is None else {pod["metadata"]["uid"]: cluster_queue_of(pod) for pod in pods}
            self._queues = queue_rows(reports, queue_of, states, sort)

    def json(self) -> Json:
        """Return what `-o json` shows."""
        if self.by == "namespace":
            return {"namespaces": [row.json() for row in self._namespaces]}
        return {"queues": [row.json() for row in self._queues]}

    def table(self, terminal: Terminal, wide: bool) -> list[str]:
        """Return the table."""
        if self.by == "namespace":
            return namespace_table(self._namespaces, terminal, wide)
        return queue_table(self._queues, terminal, wide)

    def _read(self, coming: Iterable[Json], what: str) -> list[Json] | None:
        """Return objects; None, with a note, for what the cluster lacks or the account may not read."""
        try:
            return list(coming)
        except Denied:
            self.notes.append(f"Your account may not list {what} of the whole cluster: what they say is left out.")
        except NotFound:
            self.notes.append(f"This cluster has no {what}: what they say is left out.")
        return None

    def _limits(self, coming: Iterable[Json]) -> dict[str, Sequence[QuotaLimit]] | None:
        quotas = self._read(coming, "resourcequotas")
        if quotas is None:
            return None
        found: dict[str, Sequence[QuotaLimit]] = {}
        for quota in quotas:
            limits, _ = limits_of(quota, WORDS)
            if limits:
                namespace = str(quota["metadata"]["namespace"])
                found[namespace] = (*found.get(namespace, ()), *limits)
        return found


def _reports(cards: Iterable[Json]) -> list[CardReport]:
    with uncollected():
        return [report_of_stored(stored_card(item)) for item in cards]


def _waiting(pods: Iterable[Json]) -> Counter[str]:
    """Return how many of these pods, which have no node, wait for cards in each namespace."""
    return Counter(str(pod["metadata"]["namespace"]) for pod in pods if _asks_for_cards(pod))


def _asks_for_cards(pod: Json) -> bool:
    """Return whether a pod uses a known word, or the operator has written that it waits."""
    return any(name in WORDS.by_name for name in resources_asked(pod)) or condition_of(pod, ALLOCATED) is not None
