"""What has happened so far, in numbers. The controller shows them as metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gpuledger.model.listeners import Listeners


@dataclass(slots=True)
class Counts:
    """Counters that only grow."""

    filters: int = 0
    binds: Counter[str] = field(default_factory=Counter)
    """Outcome of a bind -> how often."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Reason why no node took a pod (the first node's) -> how often."""
    bad_input: Counter[str] = field(default_factory=Counter)
    """Kind of object that could not be read (pod, node, request) -> how often."""
    pods_examined: int = 0
    nodes_examined: int = 0
    """Nodes whose facts differed from the last ones."""
    node_events: int = 0
    cards_written: int = 0
    """Cards created, changed or deleted; their status apart."""
    releases: int = 0
    wake_ups: int = 0
    """Patches that made kube-scheduler try a pod again."""
    plugin_late: int = 0
    """Pods that another system's device plugin had not found in time."""
    preemptions: Counter[str] = field(default_factory=Counter)
    """Outcome of a preemption (begun, done, given-up, forbidden) -> how often."""
    evictions: int = 0


@dataclass(slots=True)
class JournalCounts:
    """What the journal has done so far."""

    patches: int = 0
    entries: int = 0
    refusals: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Kind of error (conflict, unreachable, not-found, error) -> writes that failed by it."""
    on_write: Listeners[[float, int]] = field(default_factory=Listeners)
    """Called after each write, however it ended, with its seconds and the number of its entries."""
