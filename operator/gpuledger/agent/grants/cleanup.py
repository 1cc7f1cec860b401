"""Finds pods and claims that are gone, so that the agent can remove their containers' files.

A kubelet that has just started knows no pods and no claims until the API server has sent them, while their containers
run: what it does not show is not gone. So the API server has to say it, too. Where this agent has seen itself that
nothing of a pod is left (`ended_pods.py`), it needs neither: the kubelet names pods without their UIDs, and one that
has lost its record shows a pod's name for the next one, which may get no grant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from gpuledger.agent.kubelet.slot_owners import PodLister, Pods
from gpuledger.formats.kubernetes.pod import is_finished, pod_identity
from gpuledger.formats.resource_claims.claims import has_claim
from gpuledger.formats.runtime.cdi import Grant
from gpuledger.model.json_object import JsonMapping


class OrphanedGrants:
    """Looks for them, again and again."""

    def __init__(
        self,
        node_name: str,
        grants: Callable[[], Iterable[Grant]],
        lister: PodLister,
        pods: Pods,
        ended: Callable[[], AbstractSet[str]],
    ) -> None:
        self._node_name, self._grants, self._lister, self._pods = node_name, grants, lister, pods
        self._ended = ended  # UIDs of pods of which nothing is left
        self._missing: frozenset[str] = frozenset()  # UIDs of pods that the kubelet did not show at the last look

    async def find(self) -> frozenset[str]:
        """Return the UIDs of pods with grants of which nothing is left, or that are gone.

        Gone is what the kubelet twice has not shown for certain, and the API server does not have. Makes no request
        while there are no other grants, and asks the API server only about missing pods. Raises ApiError.
        """
        ended = self._ended()
        found = {(grant.namespace, grant.pod, grant.pod_uid) for grant in self._grants()}
        over = frozenset(uid for _, _, uid in found if uid in ended)
        pods = {pod for pod in found if pod[2] not in over}
        before, self._missing = self._missing, frozenset()
        if not pods:
            return over
        shown = (await self._lister.list()).pods
        times = Counter((namespace, name) for namespace, name, _ in pods)
        # A name that several pods have had is shown for the last of them: the others are gone.
        self._missing = frozenset(
            uid for namespace, name, uid in pods if (namespace, name) not in shown or times[namespace, name] > 1
        )
        twice = self._missing & before
        if not twice:
            return over
        return over | twice - {*await self._pods.pods_of_node(self._node_name, _uid_of_living)}


def _uid_of_living(pod: Mapping[str, Any]) -> str:
    """Return the pod's UID, an empty string if all of its containers have ended for good."""
    return "" if is_finished(pod) else pod_identity(pod).uid


class OrphanedClaims:
    """Looks for them, again and again."""

    def __init__(self, node_name: str, grants: Callable[[], Iterable[Grant]], lister: PodLister, pods: Pods) -> None:
        self._node_name, self._grants, self._lister, self._pods = node_name, grants, lister, pods
        self._missing: frozenset[str] = frozenset()  # names of grants whose claims were not shown at the last look

    async def find(self) -> frozenset[str]:
        """Return the names of claims' grants that no pod of this node uses any more.

        Those are what the kubelet twice has not shown as in use, and no pod at the API server either. Makes no request
        while there are none, and asks the API server only about missing ones. Raises ApiError.
        """
        before, self._missing = self._missing, frozenset()
        grants = [grant for grant in self._grants() if grant.claim is not None]
        if not grants:
            return frozenset()
        shown = {(claim.namespace, claim.name) for claim in (await self._lister.list()).claims}
        missing = [each for each in grants if each.claim and (each.namespace, each.claim.name) not in shown]
        self._missing = frozenset(grant.name for grant in missing)
        twice = [grant for grant in missing if grant.name in before]
        if not twice:
            return frozenset()

        def used_by(pod: JsonMapping) -> set[str]:
            return set() if is_finished(pod) else {grant.name for grant in twice if uses(pod, grant)}

        used = await self._pods.pods_of_node(self._node_name, used_by)
        return frozenset(grant.name for grant in twice).difference(*used)


def uses(pod: JsonMapping, grant: Grant) -> bool:
    """Return whether a pod has what a claim's grant brings."""
    metadata = pod["metadata"]
    if grant.claim is None or grant.of_one_pod:
        return bool(metadata["uid"] == grant.pod_uid)
    return metadata["namespace"] == grant.namespace and has_claim(pod, grant.claim.name)
