"""One real control plane for all tests of this directory.

It is a failure, not a skip, when it can't be built or started: a green run means that these tests ran.
"""

import itertools
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_control_plane import ensure_binaries
from build_steps import BuildError
from cluster.claims import create_class, remove_claims
from cluster.cluster import Cluster, Connection
from cluster.written_cards import Card
from control_plane import ControlPlane, ControlPlaneError
from installation import NO_KUBELET, Installation
from native_gangs import NativeGangs, native_gangs

HERE = Path(__file__).parent
CRD = HERE.parents[1] / "crds" / "gpuledger.dev_gpuallocations.yaml"
BUILD_PROBLEM = pytest.StashKey[str]()
RELEASE_DELAY_S = 4
"""Shorter than the default, so that the test of it need not wait; long enough to be seen on a slow machine."""

NUMBERS = itertools.count(1)
"""Of the cards that tests write themselves."""

UNDISTURBED_S = 3600
"""No comparison with full lists comes while a test counts what is looked at."""


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: a first build takes longer than a test may, and its progress should be seen."""
    if session.config.option.collectonly or not any(item.path.is_relative_to(HERE) for item in session.items):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        try:
            ensure_binaries()
        except BuildError as error:
            session.config.stash[BUILD_PROBLEM] = str(error)


@pytest.fixture(scope="session")
def plane(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """Return the control plane that all tests share; give each test objects of its own (see `namespace`)."""
    if BUILD_PROBLEM in pytestconfig.stash:
        pytest.fail(f"The control plane can't be built.\n{pytestconfig.stash[BUILD_PROBLEM]}", pytrace=False)
    shared = ControlPlane()
    try:
        shared.start()
    except ControlPlaneError as error:
        pytest.fail(f"The control plane does not start.\n{error}", pytrace=False)
    try:
        yield shared
    finally:
        shared.stop()


@pytest.fixture(scope="session")
def ledger() -> Iterator[ControlPlane]:
    """Yield a control plane that knows cards. gpuledger does not run: it would take care of those that tests make."""
    with ControlPlane.run() as plane:
        plane.kubectl("apply", "-f", str(CRD))
        plane.wait_established("gpuallocations.gpuledger.dev")
        yield plane


@pytest.fixture(scope="module")
def connection(ledger: ControlPlane) -> Iterator[Connection]:
    opened = Connection(ledger)
    yield opened
    opened.close()


@pytest.fixture
def card(ledger: ControlPlane, connection: Connection) -> Card:
    """Return a card that does not exist yet, with a name that no other test uses."""
    return Card(ledger, connection, next(NUMBERS))


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """Return a new namespace, which is deleted after the test."""
    name = f"test-{secrets.token_hex(4)}"
    plane.kubectl("create", "namespace", name)
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def native() -> NativeGangs:
    """Return what turns Kubernetes' own groups of pods on."""
    found = native_gangs()
    if found is None:
        pytest.skip("this Kubernetes has no groups of pods")
    return found


@pytest.fixture(scope="session")
def installed_cluster(plane: ControlPlane) -> Iterator[Cluster]:
    """Yield the shared control plane with gpuledger installed and running; the control plane ends it."""
    settings = {
        **NO_KUBELET,
        "release_delay_s": RELEASE_DELAY_S,
        "longest_release_s": 6,
        "resync_interval_s": UNDISTURBED_S,
    }
    installation = Installation(plane, settings)
    installation.start()
    shared = Cluster(plane, installation)
    yield shared
    shared.close()


@pytest.fixture
def cluster(installed_cluster: Cluster) -> Iterator[Cluster]:
    """Yield a cluster without nodes and pods whose operator runs, and leave it so, however the test ends."""
    yield installed_cluster
    if not installed_cluster.installation.is_ready():  # the test has failed while it was down
        installed_cluster.installation.restart_operator()
    try:
        installed_cluster.clear()
    except AssertionError:  # what one test has broken must not fail all that follow
        installed_cluster.installation.restart_operator()
        raise


@pytest.fixture
def claims_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster with our DeviceClass; afterwards it has no ResourceClaims and templates."""
    create_class(cluster)
    yield cluster
    remove_claims(cluster)
