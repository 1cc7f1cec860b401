"""Nobody is evicted for a pod that its namespace's quota keeps from the cards, and what is promised to one counts."""

from __future__ import annotations

import pytest

from fakes.api_server import ApiServer
from fakes.objects import GPU
from fakes.operator_parts import OperatorParts
from unit.workflows.preemption.test_preempt import evicted, parts, refused, want

__all__ = ["parts"]


def set_quota(parts: OperatorParts, most: int) -> None:
    metadata = {"uid": "uid-of-gpus", "name": "gpus", "namespace": "default"}
    quota = {"metadata": metadata, "spec": {"hard": {"limits.nvidia.com/gpu": str(most)}}}
    parts.workflows.quotas.observe(quota, gone=False)


@pytest.mark.parametrize(("most", "leave"), [(3, 0), (4, 1)])
async def test_pods_leave_for_one_that_may_have_their_cards(
    parts: OperatorParts, api: ApiServer, most: int, leave: int
) -> None:
    """Three cards are held, and a fourth share is asked for."""
    set_quota(parts, most)
    await want(parts, "high")
    assert len(evicted(api)) == leave


async def test_what_is_promised_counts_for_the_next_one(parts: OperatorParts, api: ApiServer) -> None:
    set_quota(parts, 4)
    await want(parts, "high")
    await want(parts, "higher", priority=200)
    assert len(evicted(api)) == 1
    api.put_pod(refused("other", {GPU: "1", "nvidia.com/gpumem": "1"}))
    parts.watch()
    (text,) = parts.filter("other", "node-a").refused.values()
    assert "quota" in text
