"""Finds claims whose pods are gone without a word of the kubelet, so that the agent can remove their files.

As for pods (`orphaned_grants.py`): a kubelet that has just started knows no claims of containers that run, so what it
does not show is not gone before the API server says it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuledger.agent.kubelet.slot_owners import PodLister, Pods
from gpuledger.formats.objects.pod import is_finished
from gpuledger.formats.resource_claims.names import has_claim
from gpuledger.formats.runtime.cdi import Grant

Json = Mapping[str, Any]


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

        def used_by(pod: Json) -> set[str]:
            return set() if is_finished(pod) else {grant.name for grant in twice if uses(pod, grant)}

        used = await self._pods.pods_of_node(self._node_name, used_by)
        return frozenset(grant.name for grant in twice).difference(*used)


def uses(pod: Json, grant: Grant) -> bool:
    """Tell whether a pod has what a claim's grant brings."""
    metadata = pod["metadata"]
    if grant.claim is None or grant.of_one_pod:
        return bool(metadata["uid"] == grant.pod_uid)
    return metadata["namespace"] == grant.namespace and has_claim(pod, grant.claim.name)
