"""What quotas allow and what is used of them, under HAMi's names.

Sources: HAMi v2.10, cmd/scheduler/metrics.go and metrics_test.go in github.com/Project-HAMi/HAMi. Memory is in MiB,
and what a quota allows is a label, too. HAMi knows one limit for a namespace and a resource: of several, the lowest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuledger.controller.telemetry.compatible_metrics import ZONE
from gpuledger.formats.objects.resource_quota import PREFIX
from gpuledger.ledger.quotas import Quotas
from gpuledger.model.quota import QuotaLimit

USED = "resourcequota usage for a certain device"
LIMIT = "resourcequota limit for a certain device"


class CompatibleQuotas(Collector):
    """Quotas for those of the systems that have such metrics: `hami` and `hami-legacy`."""

    def __init__(self, quotas: Quotas, compatibility: Collection[str]) -> None:
        self._quotas = quotas
        self._compatibility = compatibility

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the systems that are wanted."""
        labels = ["zone", "namespace", "quota_name", "limit"]
        used = GaugeMetricFamily("hami_resource_quota_used", USED, labels=labels)
        most = GaugeMetricFamily("hami_resource_quota_limit", LIMIT, labels=labels[:-1])
        legacy = GaugeMetricFamily("QuotaUsed", USED, labels=["zone", "quotanamespace", "quotaName", "limit"])
        for namespace in sorted(self._quotas.limited()):
            for limit in self._lowest(namespace):
                values = [ZONE, namespace, limit.key.removeprefix(PREFIX)]
                amount = self._quotas.used(namespace, limit)
                for family in (used, legacy):
                    family.add_metric([*values, str(limit.most)], amount)
                most.add_metric(values, limit.most)
        if "hami" in self._compatibility:
            yield used
            yield most
        if "hami-legacy" in self._compatibility:
            yield legacy

    def _lowest(self, namespace: str) -> list[QuotaLimit]:
        found: dict[str, QuotaLimit] = {}  # key -> the limit that is reached first
        for limit in self._quotas.limits(namespace):
            known = found.get(limit.key)
            if known is None or limit.most < known.most:
                found[limit.key] = limit
        return list(found.values())
