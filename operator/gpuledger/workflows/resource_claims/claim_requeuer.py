"""Has kube-scheduler try pods again whose claims were not there, or could not be used.

kube-scheduler itself looks at no claims of our profiles, so nothing else would have it try them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.share import Pod
from gpuledger.workflows.pending.pod_requeuer import PodRequeuer
from gpuledger.workflows.resource_claims.claims import ClaimBook
from gpuledger.workflows.resource_claims.kept_objects import Kind, Name

logger = logging.getLogger(__name__)


class ClaimRequeuer:
    """Remembers pods that were refused for their claims, until something of these has changed."""

    def __init__(self, book: ClaimBook, waker: PodRequeuer, is_active: Callable[[], bool]) -> None:
        self._book, self._waker, self._is_active = book, waker, is_active
        self._refused: dict[str, Pod] = {}  # UID of a pod that waits
        book.on_claim.append(self._claim_has_changed)
        book.on_appeared.append(self._object_is_there)
        book.on_waits_no_more.append(self._forget)

    def refused(self, pod: Pod) -> None:
        """Note a pod that was refused because of what is known of its claims."""
        if self._book.waiting(pod.uid) is not None:
            self._refused[pod.uid] = pod

    def _forget(self, pod_uid: str) -> None:
        self._refused.pop(pod_uid, None)

    def _claim_has_changed(self, name: Name) -> None:
        self._wake_all(self._book.naming(Kind.CLAIMS, name))

    def _object_is_there(self, kind: Kind, name: Name) -> None:
        if kind is not Kind.CLAIMS:
            self._wake_all(self._refused if kind is Kind.CLASSES else self._book.naming(kind, name))

    def _wake_all(self, pod_uids: Iterable[str]) -> None:
        for pod in list(filter(None, map(self._refused.get, pod_uids))):
            self._wake(pod)

    def _wake(self, pod: Pod) -> None:
        del self._refused[pod.uid]
        if self._is_active():
            self._waker.start(self._wake_up(pod), f"wake {pod}")

    async def _wake_up(self, pod: Pod) -> None:
        try:
            await self._waker.wake_up(pod)
        except GpuledgerError as error:
            logger.info("pod %s can't be woken: %s", pod, error)
            self.refused(pod)
