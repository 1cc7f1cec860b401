"""One real control plane for all tests of this directory, but for those whose subject it is (see shared.py).

It is a failure, not a skip, when it can't be built or started: a green run means that these tests ran.
"""

import itertools
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_control_plane import ensure_binaries, ensure_karpenter
from build_steps import BuildError
from cluster.claims import create_class, remove_claims
from cluster.cluster import Cluster, Connection
from cluster.preempting import PreemptingCluster, preempting_cluster
from cluster.shared import NAMESPACES, SharedPlane
from cluster.written_cards import Card
from control_plane import ControlPlane
from native_gangs import NativeGangs, native_gangs

HERE = Path(__file__).parent
CRD = HERE.parents[1] / "crds" / "gpuledger.dev_gpuallocations.yaml"
BESIDE_KARPENTER = "test_autoscalers.py"
"""Only `make test-all` runs it: building Karpenter takes more than four minutes."""
BUILD_PROBLEM = pytest.StashKey[str]()
NUMBERS = itertools.count(1)
"""Of the cards that tests write themselves."""


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
            if any(item.path.name == BESIDE_KARPENTER for item in session.items):
                ensure_karpenter()
        except BuildError as error:
            session.config.stash[BUILD_PROBLEM] = str(error)


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config) -> Iterator[SharedPlane]:
    """Yield the control plane that all modules share, each in its turn."""
    if BUILD_PROBLEM in pytestconfig.stash:
        pytest.fail(f"The control plane can't be built.\n{pytestconfig.stash[BUILD_PROBLEM]}", pytrace=False)
    plane = SharedPlane()
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def plane(shared: SharedPlane) -> Iterator[ControlPlane]:
    """Yield it to a module that needs no settings of its own; give each test objects of its own (see `namespace`)."""
    with shared.lent(standing=True) as lent:
        yield lent


@pytest.fixture(scope="module")
def preempting(shared: SharedPlane) -> Iterator[PreemptingCluster]:
    """Yield it with priorities and played kubelets; a test leaves it clear to the next one of its module."""
    with preempting_cluster(shared.lent()) as cluster:
        yield cluster


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
    admin = Connection(plane)
    admin.request("POST", NAMESPACES, {"metadata": {"name": name}})
    yield name
    admin.request("DELETE", f"{NAMESPACES}/{name}")
    admin.close()


@pytest.fixture(scope="session")
def native() -> NativeGangs:
    """Return what turns Kubernetes' own groups of pods on."""
    found = native_gangs()
    if found is None:
        pytest.skip("this Kubernetes has no groups of pods")
    return found


@pytest.fixture(scope="module")
def with_groups(native: NativeGangs) -> Iterator[SharedPlane]:
    """Yield a plane of the module's own: the API server has groups of pods by its feature gates."""
    plane = SharedPlane(feature_gates=native.feature_gates, runtime_config=native.runtime_config)
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def installed_cluster(shared: SharedPlane, plane: ControlPlane) -> Cluster:
    """Return the shared control plane with gpuledger running, which modules leave to each other."""
    return shared.standing()


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
