"""Containers get one device of ours each, or the pod is refused before it is placed."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.formats.resource_claims.claims import UsedClaim, check_containers
from gpuledger.model.errors import BadInput

Json = dict[str, Any]

OWN = UsedClaim("own", ("a", "b"), shared=False)
OTHER = UsedClaim("other", ("gpu",), shared=False)
SHARED = UsedClaim("shared", ("a", "b"), shared=True)
CLAIMS = (OWN, OTHER, SHARED)


def a_pod(**containers: list[Json]) -> Json:
    """Return a pod whose containers use these requests of claims."""
    listed = [{"name": name, "resources": {"claims": used}} for name, used in containers.items()]
    return {"spec": {"containers": listed}}


def whole(claim: str) -> Json:
    return {"name": claim}


def part(claim: str, request: str) -> Json:
    return {"name": claim, "request": request}


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(x=[whole("own")], y=[whole("own")]),
        a_pod(x=[part("own", "a")], y=[part("own", "b")]),
        a_pod(x=[part("own", "a"), part("own", "b")], y=[]),
        a_pod(x=[whole("own"), whole("other")], y=[whole("other"), whole("own")]),
        a_pod(x=[part("shared", "a")], y=[whole("shared")]),
        a_pod(x=[whole("shared")], y=[whole("own")]),
        a_pod(x=[whole("of another driver")], y=[whole("own")]),
    ],
)
def test_containers_that_use_the_same_or_different_requests_get_one_device_each(pod: Json) -> None:
    check_containers(pod, CLAIMS, with_resources=())


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (
            a_pod(x=[whole("own")], y=[part("own", "a")]),
            "container x uses requests of claims of which other containers",
        ),
        (a_pod(x=[whole("own"), whole("other")], y=[whole("other")]), "container x uses requests of claims of which"),
        (a_pod(x=[whole("shared"), whole("own")]), "container x uses a claim that pods share and another one"),
        (a_pod(main=[whole("own")]), "container main asks for GPUs by its resources and by a claim"),
    ],
)
def test_a_container_that_would_need_several_is_refused(pod: Json, text: str) -> None:
    with pytest.raises(BadInput, match=f"^{text}"):
        check_containers(pod, CLAIMS, with_resources=("main",))
