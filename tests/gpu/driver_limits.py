"""What the agent's own code makes of this machine's driver and its limits; JSON on standard output.

    driver_limits.py look                     the driver's version, and of each card why it can't be limited
    driver_limits.py set UUID GROUP MIB       limit a control group; 0: no limit

A process of its own: the test's may have loaded the fake library.
"""

import json
import sys

from gpuledger.agent.devices.nvml import NvmlSource
from gpuledger.agent.devices.source import MemoryLimit
from gpuledger.agent.isolation.driver_limits import ControlGroups


def main() -> None:
    source = NvmlSource(groups=ControlGroups())
    source.open()
    snapshot = source.snapshot()
    if sys.argv[1] == "set":
        uuid, group, mib = sys.argv[2:]
        source.limit_memory(MemoryLimit(uuid, group, 0, int(mib) or None))
    source.close()
    cards = [
        {"uuid": each.uuid, "why": each.why_no_limits, "reserved_mib": each.reserved_mib, "memory_mib": each.memory_mib}
        for each in snapshot.devices
        if not each.mode
    ]
    print(json.dumps({"driver": snapshot.driver_version, "cards": cards}))  # noqa: T201


if __name__ == "__main__":
    main()
