"""Many pods at once, of every kind."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from chaos.admin import Admin
from cluster.cluster import CORES, COUNT, MEMORY, PERCENT, PODS, Cluster, Json, container, pod
from effort import times

BURST_NODES = 20
BURST_PODS = times(80, 300)


def burst() -> list[Json]:
    """Return pods of every kind that fit on the burst's nodes together: all 300 take at most 130 of its 160 cards."""
    quarter = {COUNT: 1, PERCENT: 25, CORES: 25}
    shapes = {
        "quarter": [quarter],
        "memory": [{COUNT: 1, MEMORY: 6000}],
        "two-cards": [{COUNT: 2, MEMORY: 10000, CORES: 10}],
        "whole": [{COUNT: 1}],
        "two-containers": [container({COUNT: 1, PERCENT: 30}, "first"), container({COUNT: 1, MEMORY: 5000}, "second")],
    }
    numbers = {"quarter": 100, "memory": 90, "two-cards": 40, "whole": 20, "two-containers": 30}
    pods = [pod(f"{shape}-{i}", *what) for shape, what in shapes.items() for i in range(numbers[shape])]
    init = [container({COUNT: 1, MEMORY: 20000}, "prepare")]
    pods += [pod(f"init-{i}", {COUNT: 1, MEMORY: 8000}, initContainers=init) for i in range(20)]
    # Neighbours in time are of different kinds.
    pods.sort(key=lambda body: (int(body["metadata"]["name"].rsplit("-", 1)[1]), body["metadata"]["name"]))
    assert len(pods) >= BURST_PODS
    return pods[:BURST_PODS]


@contextmanager
def created_meanwhile(cluster: Cluster, pods: Sequence[Json]) -> Iterator[Callable[[int], None]]:
    """Create pods in a thread, so that they go on arriving whatever happens to the operator or to the API server.

    What it yields lets so many more of them come; the end lets all come. A quick machine would bind all before a test
    has looked.
    """
    permits = threading.Semaphore(0)

    def create() -> None:
        admin = Admin(cluster.plane)
        try:
            for body in pods:
                permits.acquire()
                admin.try_to("POST", PODS, body)
        finally:
            admin.close()

    thread = threading.Thread(target=create)
    thread.start()
    try:
        yield permits.release
    finally:
        permits.release(len(pods))
        thread.join()
