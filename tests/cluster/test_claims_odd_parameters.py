"""Parameters in claims that the API server takes, though few programs can read them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.claims import (
    CLAIMS,
    TEMPLATES,
    claim,
    claiming,
    create_class,
    opaque,
    remove_claims,
    serve_claims,
    share,
    template,
)
from cluster.cluster import Cluster


@pytest.fixture
def deep(cluster: Cluster) -> Iterator[Any]:
    """Return an object so deep that Python's own reader needs a higher limit for it, as long as there is any."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    inner: Any = 0
    for _ in range(2_000):
        inner = [inner]
    yield inner
    remove_claims(cluster)
    sys.setrecursionlimit(before)


def test_parameters_that_can_not_be_read_are_the_trouble_of_their_own_pods(cluster: Cluster, deep: Any) -> None:
    create_class(cluster)
    serve_claims(cluster, *cluster.add_nodes(1, gpus=2))
    for name, value in (("half-a-character", "\ud800"), ("deep", deep)):
        cluster.request("POST", TEMPLATES, template(name, share("4Gi"), config=[opaque(models=value)]))
        cluster.request("POST", CLAIMS, claim(name, share("4Gi"), config=[opaque(models=value)]))
        cluster.create(claiming(f"of-{name}", [name]))
    cluster.request("POST", TEMPLATES, template("plain", share("4Gi")))
    cluster.create(claiming("beside", ["plain"]))
    cluster.wait_bound("beside")
