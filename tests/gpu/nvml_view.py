"""What NVML says of the first card to a program outside of all containers; JSON on standard output.

    nvml_view.py memory           what all programs use of it together
    nvml_view.py cores PID S      how busy a process has kept it, in percent, for each of so many seconds

The process is named by NVML's number of it. One that NVML has no word of in a second has launched nothing in it.
"""

import json
import sys
import time
from typing import Any

import pynvml

MIB = 1024 * 1024


def memory(card: Any) -> dict[str, Any]:
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
    return {
        "used_mib": pynvml.nvmlDeviceGetMemoryInfo(card).used // MIB,
        "processes": sorted(each.pid for each in processes),
    }


def cores(card: Any, pid: int, seconds: int) -> dict[str, Any]:
    since_us, percents = int(time.time() * 1e6), []
    for _ in range(seconds):
        time.sleep(1)
        samples = _samples(card, since_us)
        since_us = max([since_us, *(each.timeStamp for each in samples)])
        own = [each.smUtil for each in samples if each.pid == pid]
        percents.append(sum(own) / len(own) if own else 0)
    return {"percents": percents}


def _samples(card: Any, since_us: int) -> list[Any]:
    try:
        return list(pynvml.nvmlDeviceGetProcessUtilization(card, since_us))
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):  # nobody has computed
            return []
        raise


def main() -> None:
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    try:
        found = memory(card) if sys.argv[1] == "memory" else cores(card, int(sys.argv[2]), int(sys.argv[3]))
    except pynvml.NVMLError as error:
        found = {"refused": str(error)}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
