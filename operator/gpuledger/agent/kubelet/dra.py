"""The kubelet's questions about ResourceClaims, in its protocol. What they mean is decided elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.agent._generated import dra_plugin_pb2 as messages
from gpuledger.model.errors import GpuledgerError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """A ResourceClaim, as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device that a claim has, ready for containers."""

    request: str
    """By which containers name it; without the name of a subrequest."""
    name: str
    """Of the device in its pool."""
    runtime_names: tuple[str, ...] = ()
    """By which the container runtime knows what comes with it."""


Prepare = Callable[[ClaimKey], Awaitable[Sequence[PreparedDevice]]]
"""Has a claim's devices ready. Raises GpuledgerError or OSError if it does not get any."""

Unprepare = Callable[[ClaimKey], Awaitable[None]]
"""Takes back what came with a claim, if anything did. Raises GpuledgerError or OSError."""


class DraPlugin:
    """Answers for our driver."""

    def __init__(self, pool: str, prepare: Prepare, unprepare: Unprepare) -> None:
        """Make one; `pool` is the name of the pool that all devices of this node are in."""
        self._pool, self._prepare, self._unprepare = pool, prepare, unprepare

    async def NodePrepareResources(self, request: Any, context: Any) -> messages.NodePrepareResourcesResponse:  # noqa: N802
        """Answer for each claim by itself: of those that get nothing, why."""
        claims = list(_keys(request.claims))
        answers = await asyncio.gather(*map(self._prepared, claims))
        return messages.NodePrepareResourcesResponse(
            claims={claim.uid: answer for claim, answer in zip(claims, answers, strict=True)}
        )

    async def NodeUnprepareResources(self, request: Any, context: Any) -> messages.NodeUnprepareResourcesResponse:  # noqa: N802
        """Answer for each claim by itself, for those that are unknown as well."""
        claims = list(_keys(request.claims))
        answers = await asyncio.gather(*map(self._unprepared, claims))
        return messages.NodeUnprepareResourcesResponse(
            claims={claim.uid: answer for claim, answer in zip(claims, answers, strict=True)}
        )

    async def _prepared(self, claim: ClaimKey) -> messages.NodePrepareResourceResponse:
        try:
            devices = await self._prepare(claim)
        except (GpuledgerError, OSError) as error:
            logger.warning("claim %s is not prepared: %s", claim, error)
            return messages.NodePrepareResourceResponse(error=str(error) or repr(error))
        return messages.NodePrepareResourceResponse(
            devices=[
                messages.Device(
                    request_names=[device.request],
                    pool_name=self._pool,
                    device_name=device.name,
                    cdi_device_ids=device.runtime_names,
                )
                for device in devices
            ]
        )

    async def _unprepared(self, claim: ClaimKey) -> messages.NodeUnprepareResourceResponse:
        try:
            await self._unprepare(claim)
        except (GpuledgerError, OSError) as error:
            logger.warning("claim %s is not taken back: %s", claim, error)
            return messages.NodeUnprepareResourceResponse(error=str(error) or repr(error))
        return messages.NodeUnprepareResourceResponse()


def _keys(claims: Iterable[messages.Claim]) -> Iterable[ClaimKey]:
    return (ClaimKey(claim.namespace, claim.name, claim.uid) for claim in claims)
