"""How much of what is free is of no use to the pods that come.

Source: Weng et al., USENIX ATC 2023, section 3. For one kind of pod, what is free on a node is a fragment as far as it
is on cards that can't serve such a pod: all of it, if the pod does not fit on the node, else that on cards with less
than the pod's part of a card. The mean over the kinds, each as often as it comes, is the node's fragmentation. Pods
without GPUs have no part in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuledger.simulation.trace import PodKind, TraceNode
from gpuledger.simulation.trace_cluster import TraceCluster

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class FragmentationMeter:
    """Measures a cluster for a mix of pods: kind -> how many of them there are."""

    def __init__(self, nodes: Sequence[TraceNode], mix: Mapping[PodKind, int]) -> None:
        asking = {kind: count for kind, count in mix.items() if kind.cards}
        total = sum(asking.values())
        # cards, milli of each and models -> CPU, memory and part of the mix of each kind of pod that asks so
        self._demands: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, int, float]]] = {}
        for kind, count in asking.items():
            demand = (kind.cards, kind.milli, kind.models)
            part = (kind.host.cpu_milli, kind.host.memory_mib, count / total)
            self._demands.setdefault(demand, []).append(part)
        names = np.array([node.model for node in nodes])
        self._admits = {models: np.isin(names, models) if models else names == names for _, _, models in self._demands}
        self._width = max(node.cards for node in nodes)

    def measure(self, cluster: TraceCluster) -> float:
        """Return the fragments' part of all cards of the cluster, 0 to 1."""
        free: Numbers = np.array([row + [0] * (self._width - len(row)) for row in cluster.free_milli], dtype=np.int64)
        hosts: Numbers = np.array(list(cluster.hosts.free.values()), dtype=np.int64)
        all_free = free.sum(axis=1)
        fragments = 0.0
        for (cards, milli, models), parts in self._demands.items():
            serves = free >= milli
            has_cards: Flags = (serves.sum(axis=1) >= cards) & self._admits[models]
            useful = np.where(serves, free, 0).sum(axis=1)
            for cpu_milli, memory_mib, part in parts:
                fits = has_cards & (hosts[:, 0] >= cpu_milli) & (hosts[:, 1] >= memory_mib)
                fragments += part * float(all_free.sum() - useful[fits].sum())
        return fragments / cluster.capacity_milli
