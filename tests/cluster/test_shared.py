"""The control plane that modules share is the same for each of them, whatever the one before has done."""

from collections.abc import Iterator

import pytest

from cluster.claims import OUR_CLASS
from cluster.cluster import CORES, COUNT, MERGE_PATCH, Connection, pod
from cluster.shared import SharedPlane
from installation import NAMESPACE

LABELLED = f"/api/v1/namespaces/{NAMESPACE}"
SERVICE = f"{LABELLED}/services/gpuledger-metrics"
QUOTA = {"metadata": {"name": "gpus"}, "spec": {"hard": {f"limits.{CORES}": "1"}}}


@pytest.fixture
def own() -> Iterator[SharedPlane]:
    """Yield one that no other module has: it is broken."""
    plane = SharedPlane()
    yield plane
    plane.stop()


def test_what_a_module_creates_and_starts_is_gone_afterwards(shared: SharedPlane) -> None:
    with shared.cluster({"nodes_offered": 2}) as cluster:
        cluster.add_nodes(1, gpus=2)
        cluster.create(pod("stays", {COUNT: 1}))
        cluster.wait_bound("stays")
        cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})
        cluster.request("POST", "/api/v1/namespaces/other/resourcequotas", QUOTA)
        cluster.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", OUR_CLASS)
        operator, scheduler = cluster.installation.operator, cluster.installation.scheduler
    assert operator
    assert scheduler
    assert [operator.alive, scheduler.alive] == [False, False]
    with shared.cluster({}) as cluster:
        assert (cluster.pods(), cluster.cards(), cluster.objects("nodes")) == ({}, {}, [])
        cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (f"has changed what was there before: .*{LABELLED}", ("PATCH", LABELLED, {"metadata": {"labels": {"a": "b"}}})),
        (f"has deleted what was there before: .*{SERVICE}", ("DELETE", SERVICE, None)),
    ],
    ids=["changed", "deleted"],
)
def test_a_module_that_leaves_it_otherwise_is_told_what_and_the_next_one_gets_another(
    own: SharedPlane, text: str, change: tuple[str, str, object]
) -> None:
    method, path, body = change
    with pytest.raises(AssertionError, match=text), own.lent() as plane:
        Connection(plane).request(method, path, body, MERGE_PATCH)
    with own.lent() as another:
        assert another.directory != plane.directory


def test_two_settings_at_once_are_refused(shared: SharedPlane) -> None:
    with shared.lent() as plane:
        with pytest.raises(AssertionError, match="is lent already"), shared.lent():
            pass
        plane.ensure_alive()
