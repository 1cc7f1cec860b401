"""Our DRA driver on its socket, in the kubelet's protocol. What a claim comes to is decided elsewhere.

The kubelet asks who is there whenever a socket appears in the directory that it watches, and when it starts itself;
what it asks later, it asks at the socket that we name, or, as we name none, at the same one. So there is nothing to be
done when it restarts. A kubelet before 1.34 knows no version that we speak, and says so. The health of our devices it
shows in the status of pods that have them by a ResourceClaim.

Source: k8s.io/kubernetes 1.36, pkg/kubelet/pluginmanager (plugin_watcher.go, operation_generator.go), and
pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpuledger.agent._generated import dra_health_pb2 as health_messages
from gpuledger.agent._generated import dra_plugin_pb2 as messages
from gpuledger.agent._generated import plugin_registration_pb2 as registration_messages
from gpuledger.agent.kubelet.device_plugin import LOOK_INTERVAL_S, serve_at, socket_identity
from gpuledger.formats.resource_claims.claims import DRIVER
from gpuledger.formats.resource_claims.slices import device_name
from gpuledger.model.card import Card
from gpuledger.model.errors import GpuledgerError

logger = logging.getLogger(__name__)

DIRECTORY = "plugins_registry"
"""Below the kubelet's."""

KIND = "DRAPlugin"
PLUGIN_SERVICE = "v1.DRAPlugin"
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The same under two names: 1.36 asks by the second one, whatever a plugin says, and 1.37 by the first."""

SAY_AGAIN_S = 60.0
"""How often the same health is said again, over the socket."""

COUNTS_FOR_S = 180
"""After which a health that was not said again counts as unknown."""

Answer = TypeVar("Answer")


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
    """Answers the kubelet for our driver, and is told by it whether it has taken the driver up."""

    def __init__(
        self,
        pool: str,
        kubelet_directory: Path,
        prepare: Prepare,
        unprepare: Unprepare,
        registered: Callable[[bool], None],
    ) -> None:
        """Make one; all devices of this node are in `pool`, and `registered` is called with what the kubelet says."""
        self._pool, self._prepare, self._unprepare, self._registered = pool, prepare, unprepare, registered
        self.socket = kubelet_directory / DIRECTORY / f"{DRIVER}-reg.sock"
        self._cards: tuple[Card, ...] = ()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        services = [
            (registration_messages.DESCRIPTOR.services_by_name["Registration"], ""),
            (messages.DESCRIPTOR.services_by_name["DRAPlugin"], ""),
            *((health_messages.DESCRIPTOR.services_by_name["DRAResourceHealth"], each) for each in HEALTH_SERVICES),
        ]
        await serve_at(self.socket, DRIVER, services, self, self._until_gone)

    def show(self, cards: Iterable[Card]) -> None:
        """Observe the cards as they are now."""
        self._cards = tuple(cards)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def GetInfo(self, request: Any, context: Any) -> registration_messages.PluginInfo:  # noqa: N802
        """Say what is here."""
        versions = [PLUGIN_SERVICE, *HEALTH_SERVICES]
        return registration_messages.PluginInfo(type=KIND, name=DRIVER, supported_versions=versions)

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: Any, context: Any
    ) -> registration_messages.RegistrationStatusResponse:
        """Observe whether the kubelet has taken us up. One that has not asks again, later and later."""
        if request.plugin_registered:
            logger.info("%s: registered", DRIVER)
        else:
            logger.warning("%s: the kubelet does not take it up: %s", DRIVER, request.error)
        self._registered(request.plugin_registered)
        return registration_messages.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: Any, context: Any) -> messages.NodePrepareResourcesResponse:  # noqa: N802
        """Answer for each claim by itself: of those that get nothing, why."""
        return messages.NodePrepareResourcesResponse(claims=await _of_each(request.claims, self._prepared))

    async def NodeUnprepareResources(self, request: Any, context: Any) -> messages.NodeUnprepareResourcesResponse:  # noqa: N802
        """Answer for each claim by itself, for those that are unknown as well."""
        return messages.NodeUnprepareResourcesResponse(claims=await _of_each(request.claims, self._unprepared))

    async def NodeWatchResources(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[health_messages.NodeWatchResourcesResponse]:
        """Say how all cards are: now, at each change, and again from time to time."""
        while True:
            changed = self._changed
            yield health_messages.NodeWatchResourcesResponse(devices=map(self._health, self._cards))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAY_AGAIN_S):
                    await changed.wait()

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

    def _health(self, card: Card) -> health_messages.DeviceHealth:
        return health_messages.DeviceHealth(
            device=health_messages.DeviceIdentifier(pool_name=self._pool, device_name=device_name(card.uuid)),
            health=health_messages.HEALTHY if card.healthy else health_messages.UNHEALTHY,
            last_updated_time=int(time.time()),
            health_check_timeout_seconds=COUNTS_FOR_S,
            message=card.fault,
        )

    async def _until_gone(self) -> None:
        """Return when nobody can find the socket any more."""
        own = socket_identity(self.socket)
        while socket_identity(self.socket) == own:  # noqa: ASYNC110 - a kubelet sets no event of ours
            await asyncio.sleep(LOOK_INTERVAL_S)
        logger.info("%s: its socket is gone", DRIVER)


async def _of_each(
    claims: Iterable[messages.Claim], answer: Callable[[ClaimKey], Awaitable[Answer]]
) -> dict[str, Answer]:
    """Return UID of each claim -> the answer for it."""
    keys = [ClaimKey(claim.namespace, claim.name, claim.uid) for claim in claims]
    answers = await asyncio.gather(*map(answer, keys))
    return {key.uid: each for key, each in zip(keys, answers, strict=True)}
