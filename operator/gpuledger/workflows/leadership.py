"""Decides which of several operators may write: the one whose kube-scheduler holds the Lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gpuledger.formats.kubernetes.other import holder_host_name

logger = logging.getLogger(__name__)


class Leadership:
    """Follows the Lease of the kube-schedulers. The operator beside the one that holds it is active.

    Two that take themselves for active do no harm, only double work: the ledger's rules hold for both, and so do the
    quotas of namespaces (quota.py).
    """

    def __init__(self, host_name: str | None) -> None:
        self._host_name = host_name
        self._active = asyncio.Event()
        self._passive = asyncio.Event()
        self._holder_host_name = ""
        self._set(host_name is None)

    def is_active(self) -> bool:
        """Return whether this operator writes. Without a host name it always does."""
        return self._active.is_set()

    def active_elsewhere(self) -> str | None:
        """Return the host name of the active operator, empty if there is none; None if this one is active."""
        return None if self.is_active() else self._holder_host_name

    def observe(self, lease: Mapping[str, Any], gone: bool) -> None:
        """Observe the Lease."""
        self._holder_host_name = "" if gone else holder_host_name(lease)
        active = self._holder_host_name == self._host_name
        if active != self.is_active():
            logger.info("this operator is %s now", "active" if active else "passive")
            self._set(active)

    async def wait_active(self) -> None:
        """Return as soon as this operator is active."""
        await self._active.wait()

    async def wait_passive(self) -> None:
        """Return as soon as this operator is not active."""
        await self._passive.wait()

    def _set(self, active: bool) -> None:
        (self._active if active else self._passive).set()
        (self._passive if active else self._active).clear()
