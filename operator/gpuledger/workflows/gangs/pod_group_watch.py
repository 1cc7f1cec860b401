"""Follows PodGroups of the kinds that pods name, as long as the API server has them.

A kind that no pod names costs nothing. One that a pod names, and that the API server does not have, is asked for again
every few seconds while the pod waits: its CustomResourceDefinition may be installed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from gpuledger.formats.kubernetes.gang import PODGROUPS, GroupWords
from gpuledger.kube_api.reads import pod_groups_of
from gpuledger.kube_api.watch import Api, follow
from gpuledger.model.errors import ApiError, Denied, NotFound
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.gangs.pod_groups import PodGroups

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Between two looks whether a kind is there by now."""

NO_SUCH_KIND = "the API server has no such kind"
DENIED = "the operator's account may not list these: apply rbac.yaml of this release"


async def follow_pod_groups(api: Api, groups: PodGroups, members: Members) -> None:
    """Follow PodGroups until cancelled."""
    async with asyncio.TaskGroup() as kinds:
        for words in PODGROUPS:
            kinds.create_task(_follow_kind(api, groups, members, words), name=f"follow PodGroups of {words.api_group}")


async def _follow_kind(api: Api, groups: PodGroups, members: Members, words: GroupWords) -> None:
    while True:
        await groups.named[words.way].wait()
        path = await _path_of(api, groups, words)
        if path is not None:
            logger.info("following %s", path)
            observe = partial(groups.observe, words)
            await follow(api, path, {}, observe, partial(groups.listing, words), while_served=True)
            continue  # another version may be there
        await asyncio.sleep(LOOK_S)
        if not members.names(words.way):
            groups.named[words.way].clear()


async def _path_of(api: Api, groups: PodGroups, words: GroupWords) -> str | None:
    """Return where a kind's objects are; None if it can't be read, which is noted."""
    for version in words.versions:
        path = pod_groups_of(words.api_group, version)
        try:
            await api.request("GET", path, parameters={"limit": "1"})
        except NotFound:
            continue
        except Denied:
            groups.can_not_be_read(words, DENIED)
            return None
        except ApiError as error:  # what was known stays
            logger.info("%s can't be listed, retrying: %s", path, error)
            return None
        return path
    groups.can_not_be_read(words, NO_SUCH_KIND)
    return None
