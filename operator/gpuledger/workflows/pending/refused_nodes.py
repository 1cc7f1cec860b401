"""Finds out why kube-scheduler itself refuses nodes: for one pod, when a person asks. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpuledger.formats.kubernetes.constraints import against_rules, lacking, taken_of
from gpuledger.formats.scheduler.configuration import SchedulerWords
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.errors import ApiError, Unreachable
from gpuledger.model.json_object import Json
from gpuledger.reports.explanation import SchedulerReason

NODES_READ = 24
"""Nodes, the nearest ones, that are looked up for one pod; each is a request to the API server."""

NODES_SUMMED = 8
"""Of these, nodes whose pods are read as well: a node can have some hundred, of 10 kB each."""


async def why_refused(
    store: KubeStore, pod: Json, words: SchedulerWords, node_names: Sequence[str]
) -> dict[str, SchedulerReason]:
    """Return node name -> why kube-scheduler does not take it, where that can be told from the objects.

    Nodes that can't be read are left out: what kube-scheduler has written stands beside it.
    """
    found: dict[str, SchedulerReason] = {}
    sums_left = NODES_SUMMED
    for name in node_names[:NODES_READ]:
        try:
            node = await store.node(name)
            why = against_rules(pod, node)
            if why is None and sums_left:
                sums_left -= 1
                there = await store.pods_of_node(name, partial(taken_of, short_of=words.short_of))
                why = lacking(pod, node, [each for each in there if each], words.short_of)
        except Unreachable:  # nobody waits for as many time-outs as there are nodes
            break
        except ApiError:
            continue
        if why is not None:
            found[name] = SchedulerReason(*why)
    return found
