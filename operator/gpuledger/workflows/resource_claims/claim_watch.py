"""Follows ResourceClaims, their templates and DeviceClasses, from the first pod on that brings a claim."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from gpuledger.formats.resource_claims.cel import environment
from gpuledger.kube_api.reads import claim_objects_of
from gpuledger.kube_api.watch import Api, follow
from gpuledger.model.errors import ApiError, Denied, NotFound
from gpuledger.workflows.resource_claims.claims import ClaimBook
from gpuledger.workflows.resource_claims.kept_objects import Kind

logger = logging.getLogger(__name__)

LOOK_S = 30.0
"""Between two looks whether a kind can be read by now."""

NO_SUCH_KIND = "the API server has no resource.k8s.io/v1, which came with Kubernetes 1.34"
DENIED = "the operator's account may not list these: apply rbac.yaml of this release"


async def follow_claims(api: Api, book: ClaimBook) -> None:
    """Follow all three kinds until cancelled."""
    await book.wanted.wait()
    await asyncio.to_thread(environment.load)
    async with asyncio.TaskGroup() as kinds:
        kinds.create_task(book.read_what_pods_name(), name="read claims that pods name")
        for kind in Kind:
            kinds.create_task(_follow_kind(api, book, kind), name=f"follow {kind}")


async def _follow_kind(api: Api, book: ClaimBook, kind: Kind) -> None:
    path = claim_objects_of(kind)
    while True:
        if await _can_be_read(api, book, kind, path):
            await follow(api, path, {}, partial(book.observe, kind), partial(book.listing, kind), while_served=True)
        await asyncio.sleep(LOOK_S)


async def _can_be_read(api: Api, book: ClaimBook, kind: Kind, path: str) -> bool:
    try:
        await api.request("GET", path, parameters={"limit": "1"})
    except NotFound:
        book.can_not_be_read(kind, NO_SUCH_KIND)
    except Denied:
        book.can_not_be_read(kind, DENIED)
    except ApiError as error:
        logger.info("%s can't be listed, retrying: %s", path, error)
    else:
        return True
    return False
