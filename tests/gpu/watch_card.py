"""What the agent's own code sees of this machine's cards as it works; a line of JSON on standard output for each look.

    watch_card.py uses        the cards, the processes and what is used, for each line of standard input
    watch_card.py faults S    after a first line, faults for so many seconds, and the cards as they are judged after it

A process of its own: the test's may have loaded the fake library.
"""

import dataclasses
import json
import sys
import time
from datetime import UTC, datetime

from gpuledger.agent.devices.health import CardHealth, HealthPolicy
from gpuledger.agent.devices.nvml import NvmlSource
from gpuledger.agent.devices.source import Fault


def uses(source: NvmlSource) -> None:
    snapshot = source.snapshot()
    for _ in iter(sys.stdin.readline, ""):
        given = {card.uuid: card.memory_mib - card.reserved_mib for card in snapshot.devices}
        say(**dataclasses.asdict(source.uses()), given_mib=given)


def faults(source: NvmlSource, seconds: float) -> None:
    health = CardHealth(HealthPolicy())
    health.judge(source.snapshot(), time.monotonic(), datetime.now(UTC))
    say(ready=True)
    found: list[Fault] = []
    until_s = time.monotonic() + seconds
    while not found and (left_s := until_s - time.monotonic()) > 0:
        found += source.wait_for_faults(left_s)
    counted = [each.code for each in found if health.take(each, time.monotonic(), datetime.now(UTC))]
    judged = health.judge(source.snapshot(), time.monotonic(), datetime.now(UTC))
    out = {device.uuid: device.fault for device in judged.devices if device.fault}
    say(faults=[dataclasses.asdict(each) for each in found], counted=counted, out=out)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)  # noqa: T201


def main() -> None:
    source = NvmlSource()
    source.open()
    if sys.argv[1] == "uses":
        uses(source)
    else:
        faults(source, float(sys.argv[2]))
    source.close()


if __name__ == "__main__":
    main()
