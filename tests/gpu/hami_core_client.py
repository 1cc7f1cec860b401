"""A program that computes on the first card as it is told, a line of standard input for each step, and answers in JSON.

    seen           what CUDA and NVML say of the card's memory
    take MIB       allocate so much at once
    fill           allocate more and more until it is refused
    launch COUNT   run so many kernels, one after the other
    compute S      run kernels for so many seconds; without a number, until the next line comes

It ends with standard input, and with the first call that fails, other than an allocation. Results are CUresults.
"""

import select
import sys
import time

import pynvml

from gpu.mps_client import MIB, STEP_MIB, Cuda, say

BUSY = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry busy()
{
    .reg .pred %p<2>;
    .reg .b64 %rd<4>;
    mov.u64 %rd1, %clock64;
again:
    mov.u64 %rd2, %clock64;
    sub.u64 %rd3, %rd2, %rd1;
    setp.lt.u64 %p1, %rd3, 40000;
    @%p1 bra again;
    ret;
}
"""
"""PTX of a kernel whose threads count the processor's clock: each block takes some 25 microseconds."""

BLOCKS_PER_PROCESSOR, THREADS = 1024, 256
"""Some milliseconds for a kernel. HAMi-core counts blocks, whatever they take, and does not limit a program of few: so
there are many, as of a kernel that handles a large array."""


class Program:
    def __init__(self) -> None:
        self._cuda = Cuda()
        self._kernel = self._cuda.kernel(BUSY, b"busy")
        self._blocks = self._cuda.processors() * BLOCKS_PER_PROCESSOR
        pynvml.nvmlInit()
        self._card = pynvml.nvmlDeviceGetHandleByIndex(0)

    def do(self, step: str, *arguments: str) -> None:
        match step:
            case "seen":
                self._seen()
            case "take":
                say(result=self._take(int(arguments[0])))
            case "fill":
                self._fill()
            case "launch":
                for _ in range(int(arguments[0])):
                    self._launch()
                say(launches=int(arguments[0]))
            case "compute":
                self._compute(float(arguments[0]) if arguments else None)
            case _:
                say(failed=f"there is no step {step!r}")

    def _seen(self) -> None:
        free_mib, total_mib = self._cuda.free_and_total_mib()
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._card)
        say(
            free_mib=free_mib,
            total_mib=total_mib,
            nvml_used_mib=memory.used // MIB,
            nvml_total_mib=memory.total // MIB,
        )

    def _take(self, mib: int) -> int:
        result, _ = self._cuda.take(mib)
        return result

    def _fill(self) -> None:
        taken_mib = 0
        while (result := self._take(STEP_MIB)) == 0:
            taken_mib += STEP_MIB
        say(result=result, taken_mib=taken_mib)

    def _launch(self) -> None:
        result = self._cuda.run(self._kernel, self._blocks, THREADS)
        if result != 0:
            say(failed="cuCtxSynchronize", result=result)
            sys.exit(1)

    def _compute(self, seconds: float | None) -> None:
        """Run kernels, and tell how long one took at least and at most, and how many there were before the longest."""
        began_s = ended_s = time.monotonic()
        took_s: list[float] = []
        while ended_s - began_s < seconds if seconds is not None else not _line_waits():
            self._launch()
            before_s, ended_s = ended_s, time.monotonic()
            took_s.append(ended_s - before_s)
        longest_s = max(took_s)
        say(
            launches=len(took_s),
            seconds=ended_s - began_s,
            shortest_s=min(took_s),
            longest_s=longest_s,
            before_longest=took_s.index(longest_s),
        )


def _line_waits() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    program = Program()
    for line in iter(sys.stdin.readline, ""):
        if line.strip() != "stop":  # which only ends a step
            program.do(*line.split())


if __name__ == "__main__":
    main()
