"""One real control plane with one real node for all tests of this directory.

Where no node can run, these tests are skipped, with what is missing. In the pipeline (CI=true) that is a failure: a
green run means that they ran.
"""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

import container_image
from build_control_plane import ensure_binaries, ensure_node_binaries
from build_steps import BuildError
from control_plane import ControlPlane, ControlPlaneError
from local_node import Node, complaint, missing_requirements
from node.agent_pod import HAMI_CORE, LATE_S, AgentPod, operator_with
from node.gpu_node import GpuNode
from node.pods import Pods
from requirements import require

HERE = Path(__file__).parent
NODE = "node-1"
OUT_OF_THE_IMAGE = (
    "test_daemonset.py",
    "test_as_pods.py",
    "test_image.py",
    "test_lost_ledger.py",
    "test_mps_daemons.py",
    "test_second_week.py",
)
MISSING = pytest.StashKey[str]()
BUILD_PROBLEM = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.node)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: a first build takes longer than a test may, and its progress should be seen."""
    if session.config.option.collectonly or not any(item.path.is_relative_to(HERE) for item in session.items):
        return
    if missing := missing_requirements():
        session.config.stash[MISSING] = complaint(missing)
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        try:
            ensure_binaries()
            ensure_node_binaries()
            if any(item.path.name in OUT_OF_THE_IMAGE for item in session.items):
                with contextlib.suppress(BuildError):  # those tests build it again, and fail by themselves
                    container_image.ensure_layers()
        except BuildError as error:
            session.config.stash[BUILD_PROBLEM] = str(error)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip here and not in a fixture: the summary then has one line for all tests."""
    require("tests of nodes", item.config.stash.get(MISSING, ""))


@pytest.fixture(scope="session")
def plane(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """Return the control plane that all tests share, with a scheduler of its own for pods that name none."""
    if problem := pytestconfig.stash.get(BUILD_PROBLEM, None):
        pytest.fail(f"The control plane or the node can't be built.\n{problem}", pytrace=False)
    shared = ControlPlane(nodes=[NODE])
    try:
        shared.start()
        shared.start_default_scheduler()
    except ControlPlaneError as error:
        shared.stop()
        pytest.fail(f"The control plane does not start.\n{error}", pytrace=False)
    try:
        yield shared
    finally:
        shared.stop()


@pytest.fixture(scope="session")
def node(plane: ControlPlane) -> Iterator[Node]:
    """Return the node that all tests share."""
    shared = Node(NODE, plane)
    try:
        shared.start()
    except ControlPlaneError as error:
        pytest.fail(f"The node does not start.\n{error}", pytrace=False)
    try:
        yield shared
    finally:
        shared.stop()


@pytest.fixture
def pods(plane: ControlPlane, node: Node) -> Iterator[Pods]:
    """Return a new namespace on the shared node, whose pods are gone after the test."""
    namespace = Pods(plane, f"test-{secrets.token_hex(4)}")
    yield namespace
    namespace.delete()


@pytest.fixture(scope="session")
def gpu_node(plane: ControlPlane, node: Node) -> Iterator[GpuNode]:
    """Return gpuledger on the shared plane and node: operator, scheduler and agent, with four simulated cards."""
    shared = GpuNode(plane, node)
    yield shared
    shared.kill_agent()
    shared.cluster.close()


@pytest.fixture
def gpu(gpu_node: GpuNode) -> Iterator[GpuNode]:
    """Yield the node with an agent that is ready, and without pods."""
    if gpu_node.agent is None or not gpu_node.agent.alive:
        gpu_node.start_agent()
    gpu_node.wait_ready()
    yield gpu_node
    gpu_node.remove_all()


@pytest.fixture(scope="module")
def installed(gpu_node: GpuNode) -> Iterator[AgentPod]:
    """Yield the DaemonSet, made ready to run; no agent runs yet."""
    require("no image can be built, for want of", next(iter(container_image.missing_requirements()), ""))
    gpu_node.kill_agent()
    with operator_with(gpu_node, start_timeout_s=LATE_S, hami_core_directory=HAMI_CORE):
        agent = AgentPod(gpu_node)
        try:
            agent.install()
        except BuildError as error:
            pytest.fail(f"The image can't be built.\n{error}", pytrace=False)
        yield agent


@pytest.fixture
def agent(installed: AgentPod) -> Iterator[AgentPod]:
    """Yield a new pod of the agent, which serves."""
    installed.start()
    yield installed
    installed.gpu.remove_all()
    installed.stop()
