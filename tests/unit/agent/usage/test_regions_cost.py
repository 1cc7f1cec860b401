"""What 200 containers cost the monitor, with regions of real size: counted, because time depends on the machine."""

import resource
from collections.abc import Callable

from fakes.shared_regions import NEWEST
from gpuledger.agent.usage.monitor import Monitor
from unit.agent.usage.conftest import Node

REGIONS, CARDS, PROCESSES = 200, 8, 4
INTERVAL_S = 5.0


def cpu_s(work: Callable[[], object]) -> float:
    begin = resource.getrusage(resource.RUSAGE_THREAD)
    work()
    end = resource.getrusage(resource.RUSAGE_THREAD)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def test_a_pass_over_many_regions_reads_and_opens_little(node: Node, say: Callable[[str], None]) -> None:
    for number in range(REGIONS):
        pids = [(number * PROCESSES + place + 1, 100) for place in range(PROCESSES)]
        node.active(f"pod-{number:03d}", number // CARDS % 2, (f"GPU-{number % CARDS}",), processes=pids)
    monitor = Monitor(node.grants.values, INTERVAL_S, node.regions)
    paused = node.look()
    assert len(paused) == REGIONS // CARDS // 2 * CARDS
    effort = node.regions.effort
    opened, read, written = effort.opened, effort.bytes_read, effort.written
    times_s = [cpu_s(lambda: node.regions.look(monitor.places())) for _ in range(10)]
    assert (effort.opened - opened) / 10 == REGIONS
    assert effort.written == written
    each = (effort.bytes_read - read) / 10 / REGIONS
    assert each <= NEWEST.head.size + PROCESSES * NEWEST.process.size + 128
    size_bytes = sum((node.root / name / "usage.cache").stat().st_size for name in node.grants)
    assert size_bytes > 400_000_000
    share = sorted(times_s)[len(times_s) // 2] / INTERVAL_S
    say(f"{REGIONS} regions: {share:.2%} of a core at a look every {INTERVAL_S:g} s, {each / 1024:.1f} KiB of each")
