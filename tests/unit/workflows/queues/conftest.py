"""One operator that answers Kueue's check, over a node of four cards."""

import pytest

from fakes.queue_scene import QueueScene
from fakes.queue_server import QueueServer


@pytest.fixture
def api() -> QueueServer:
    """Return an API server without objects that knows Kueue's."""
    return QueueServer()


@pytest.fixture
async def scene(api: QueueServer) -> QueueScene:
    """Return one node with four cards, and two ClusterQueues of one cohort that take nothing from each other."""
    return QueueScene(api)
