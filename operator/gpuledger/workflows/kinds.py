"""The kinds of objects that the operator follows: one table, and one loop that follows any of them.

The table says of each kind where it is, in which versions, whether the API server may lack it, how long to pause until
it is looked for again, and what watches it. Kopf watches Nodes, and Pods up to a number of nodes; the plain watch of
kube_api/watch.py all others, for the reasons and figures in docs/decisions/09-what-kopf-does.md. Whoever watches shows
the objects to the same `Subscription`.

Kinds that the API server may lack are followed once it has them: their CustomResourceDefinitions may be installed, and
deleted, at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from gpuledger.formats.annotations import STAND_IN_LABEL
from gpuledger.formats.kubernetes.gang import PODGROUPS
from gpuledger.formats.kubernetes.other import LEASE_DURATION_S, LEASE_NAME, LEASE_NAMESPACE
from gpuledger.kube_api import reads, writes
from gpuledger.kube_api.watch import SILENCE_S, Api, Listed, Listing, all_of, follow
from gpuledger.model.errors import ApiError, Denied, NotFound
from gpuledger.model.json_object import Json

AGENT_SELECTOR = "app.kubernetes.io/name=gpuledger-agent"
"""Label of the agents' pods, in our own namespace: no user can write there."""

OPERATOR_SELECTOR = "app.kubernetes.io/name=gpuledger"
"""Label of the operator's."""

AUDIT_SELECTOR = "app.kubernetes.io/name=gpuledger-audit"
"""Label of the audits' Jobs, there too."""


class Watcher(Enum):
    """What watches a kind."""

    KOPF = "Kopf"
    PLAIN = "the plain watch"
    BY_SIZE = "Kopf up to kopf_pods_most_nodes nodes, the plain watch beyond"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, or those of a kind that a selector leaves."""

    paths: tuple[str, ...]
    """In the versions of its API, the newest first; the first that the API server has counts."""
    watcher: Watcher = Watcher.PLAIN
    fields: str = ""
    """Selects objects by their fields; empty: all."""
    labels: str = ""
    absent: str = ""
    """What is reported where the API server has no such kind; empty: it always has."""
    pause_s: float = 0.0
    """Between two looks whether it can be read by now."""
    start_wait_s: float = 0.0
    """How long the operator's start waits for its first list, if the kind is followed by then."""
    silence_s: float = SILENCE_S
    """A watch that shows nothing for so long is broken."""

    def __str__(self) -> str:
        return " ".join((self.paths[0], *filter(None, (self.fields, self.labels))))

    @property
    def plural(self) -> str:
        """Return its name in paths."""
        return self.paths[0].rpartition("/")[2]

    @property
    def parameters(self) -> dict[str, str]:
        """Return the query that selects its objects."""
        selectors = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: selector for name, selector in selectors.items() if selector}


NODES = Kind((reads.NODES,), Watcher.KOPF)
PODS = Kind((reads.PODS,), Watcher.BY_SIZE)
CARDS = Kind((reads.ALLOCATIONS,))
# No namespace gets more than it may have. But an account of an older release may not read them.
QUOTAS = Kind((reads.RESOURCE_QUOTAS,), start_wait_s=30.0)
# Nodes are not opened that would be closed at once. Without this list, the kubelets' word alone counts.
AGENT_PODS = Kind((reads.pods_in(LEASE_NAMESPACE),), labels=AGENT_SELECTOR, start_wait_s=5.0)
# Pods by which autoscalers are asked for nodes, in our own namespace, too. No pod goes to a node that one stands for.
STAND_INS = Kind((reads.pods_in(LEASE_NAMESPACE),), labels=STAND_IN_LABEL, start_wait_s=5.0)
# The replicas that this one gets the history from.
OPERATOR_PODS = Kind((reads.pods_in(LEASE_NAMESPACE),), labels=OPERATOR_SELECTOR)
# Its holder renews it all the time.
LEASE = Kind(
    (reads.leases_in(LEASE_NAMESPACE),), fields=f"metadata.name={LEASE_NAME}", silence_s=float(LEASE_DURATION_S)
)
# How the regular audits ended. An account of an older release may not read them.
AUDITS = Kind(
    (reads.jobs_in(LEASE_NAMESPACE),), labels=AUDIT_SELECTOR, absent="the API server has no Jobs", pause_s=60.0
)
# Members of gangs are not refused for want of what is about to be known.
POD_GROUPS = {
    words.way: Kind(
        tuple(reads.groups_of(words.api_group, version, words.plural) for version in words.versions),
        absent="the API server has no such kind",
        pause_s=5.0,
        start_wait_s=5.0,
    )
    for words in PODGROUPS
}
# What pods with claims have is compared with what they ask for.
NO_CLAIMS = "the API server has no resource.k8s.io/v1, which came with Kubernetes 1.34"
CLAIM_OBJECTS = {
    plural: Kind((reads.claim_objects_of(plural),), absent=NO_CLAIMS, pause_s=30.0, start_wait_s=5.0)
    for plural in ("resourceclaims", "resourceclaimtemplates", "deviceclasses")
}
# No pod gets what is reserved for others.
RESERVATIONS = Kind(
    (writes.RESERVATIONS,), absent="its CRD is not installed: docs/reservations.md", pause_s=60.0, start_wait_s=5.0
)
WORKLOADS, ADMISSION_CHECKS, FLAVORS, CLUSTER_QUEUES, COHORTS = (
    Kind((path,), absent="Kueue is not installed", pause_s=5.0, start_wait_s=wait_s)
    for path, wait_s in (
        (writes.WORKLOADS, 5.0),
        (writes.ADMISSION_CHECKS, 0.0),
        (writes.FLAVORS, 0.0),
        (writes.CLUSTER_QUEUES, 0.0),
        (writes.COHORTS, 0.0),
    )
)

DENIED = "the operator's account may not list these: apply rbac.yaml of this release"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is called of the objects of a kind, and when."""

    kind: Kind
    observe: Callable[[Json, bool], None]
    """Called with an object, and whether it is gone."""
    listing: Listing = lambda: lambda _: None
    """See kube_api/watch.py: `follow`."""
    since: Callable[[], Awaitable[str]] | None = None
    """Awaited before the kind is followed; returns the version of a list that was read elsewhere, or nothing."""
    wanted: asyncio.Event | None = None
    """The kind is read only while this is set; None: always."""
    is_wanted: Callable[[], bool] = lambda: True
    """Asked after a look in vain: if it says no, `wanted` is waited for again."""
    can_not_be_read: Callable[[str], None] = lambda _: None
    """Called with the reason at each look in vain, unless it may pass by itself."""
    listed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the plain watch when the kind was listed, or could not be."""

    def begin_list(self) -> Listed:
        """Record that the kind is being listed; return what is called after that."""
        return all_of(self.listing, lambda: lambda _: self.listed.set())

    def fail(self, why: str) -> None:
        """Report that the kind can't be read."""
        self.can_not_be_read(why)
        self.listed.set()


async def follow_kind(api: Api, subscription: Subscription) -> None:
    """Follow a kind by the plain watch, whenever it is wanted and can be read, until cancelled."""
    kind = subscription.kind
    while True:
        if subscription.wanted is not None:
            await subscription.wanted.wait()
        path = await _served_path(api, subscription) if kind.absent else kind.paths[0]
        if path:
            version = await subscription.since() if subscription.since else ""
            watched = subscription.observe, subscription.begin_list, kind.silence_s, bool(kind.absent), version
            await follow(api, path, kind.parameters, *watched)
            continue  # another version may be there
        await asyncio.sleep(kind.pause_s)
        if subscription.wanted is not None and not subscription.is_wanted():
            subscription.wanted.clear()


async def _served_path(api: Api, subscription: Subscription) -> str:
    """Return the first path of the kind that the API server has; nothing if it can't be read, which is reported."""
    last = subscription.kind.paths[-1]
    try:
        for path in subscription.kind.paths:
            with suppress(*([] if path is last else [NotFound])):
                await api.request("GET", path, parameters={"limit": "1"})
                logger.info("following %s", path)
                return path
    except NotFound:
        subscription.fail(subscription.kind.absent)
    except Denied:
        subscription.fail(DENIED)
    except ApiError as error:  # what was known stays
        logger.info("%s can't be listed, retrying: %s", last, error)
    return ""
