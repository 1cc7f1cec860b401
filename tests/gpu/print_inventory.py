"""Print what NvmlSource finds, as JSON. A process of its own: the test's may have loaded the fake library."""

import dataclasses
import json

from gpuledger.agent.devices.nvml import NvmlSource


def main() -> None:
    source = NvmlSource()
    source.open()
    snapshot = source.snapshot()
    source.uses()
    source.close()
    devices = [
        {field.name: getattr(device, field.name) for field in dataclasses.fields(device)} for device in snapshot.devices
    ]
    found = {"devices": devices, "driver": snapshot.driver_version, "cuda": snapshot.cuda_version}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
