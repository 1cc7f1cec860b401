"""A program that uses a card by CUDA's driver API alone, and says in JSON lines what happens.

    mps_client.py hold MIB     take so much, write and read it again and again until standard input ends
    mps_client.py exceed       take more and more until it is refused
    mps_client.py processors   say how many multiprocessors it may use
    mps_client.py fault        write where nothing is: a fatal fault of the card

Times are those of the machine's monotonic clock. Functions of the API return a CUresult: 0 is success, 2 is out of
memory (cuda.h).
"""

import ctypes
import json
import select
import sys
import time

MIB = 1024 * 1024
STEP_MIB = 64
OUT_OF_MEMORY = 2
MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""

FAULT = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry fault()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 16;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
"""PTX of a kernel that writes to the address 16."""


class Cuda:
    """The first card that is visible, with its primary context."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check("cuInit", 0)
        self.check("cuDeviceGet", ctypes.byref(device), 0)
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.check("cuCtxSetCurrent", context)

    def check(self, call: str, *arguments: object) -> None:
        """Call, and end the program if that fails."""
        result = getattr(self.library, call)(*arguments)
        if result != 0:
            say(failed=call, result=result)
            sys.exit(1)

    def take(self, mib: int) -> tuple[int, ctypes.c_uint64]:
        """Return the result, and the address of the memory."""
        address = ctypes.c_uint64()
        result = self.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib * MIB))
        return result, address

    def write(self, address: ctypes.c_uint64, value: int, mib: int) -> None:
        """Fill memory, and wait until that is done."""
        self.check("cuMemsetD8_v2", address, ctypes.c_ubyte(value), ctypes.c_size_t(mib * MIB))
        self.check("cuCtxSynchronize")

    def read(self, address: ctypes.c_uint64) -> int:
        """Return the first byte."""
        value = ctypes.c_ubyte()
        self.check("cuMemcpyDtoH_v2", ctypes.byref(value), address, ctypes.c_size_t(1))
        return value.value

    def processors(self) -> int:
        """Return how many multiprocessors this process may use."""
        number = ctypes.c_int()
        self.check("cuDeviceGetAttribute", ctypes.byref(number), MULTIPROCESSORS, 0)
        return number.value

    def kernel(self, ptx: bytes, name: bytes) -> ctypes.c_void_p:
        """Return a kernel without parameters."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.check("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx))
        self.check("cuModuleGetFunction", ctypes.byref(kernel), module, ctypes.c_char_p(name))
        return kernel

    def run(self, kernel: ctypes.c_void_p, blocks: int = 1, threads: int = 1) -> int:
        """Run a kernel, of so many threads in each block, and return the result of waiting for it."""
        sizes = [ctypes.c_uint(each) for each in (blocks, 1, 1, threads, 1, 1)]
        self.check("cuLaunchKernel", kernel, *sizes, ctypes.c_uint(0), None, None, None)
        return int(self.library.cuCtxSynchronize())

    def free_and_total_mib(self) -> tuple[int, int]:
        """Return what the driver says is there for this process."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value // MIB, total.value // MIB


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)  # noqa: T201


def hold(cuda: Cuda, mib: int) -> None:
    result, address = cuda.take(mib)
    if result != 0:
        say(failed="cuMemAlloc", result=result)
        sys.exit(1)
    rounds = 0
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        rounds += 1
        cuda.write(address, rounds % 256, mib)
        if cuda.read(address) != rounds % 256:
            say(failed="the memory holds something else", result=0)
            sys.exit(1)
        say(rounds=rounds, at_s=time.monotonic())
    say(ended=rounds)


def exceed(cuda: Cuda) -> None:
    free_mib, total_mib = cuda.free_and_total_mib()
    taken_mib = 0
    while True:
        result, address = cuda.take(STEP_MIB)
        if result != 0:
            break
        cuda.write(address, 1, STEP_MIB)
        taken_mib += STEP_MIB
    say(taken_mib=taken_mib, result=result, free_mib=free_mib, total_mib=total_mib)
    sys.exit(3 if result == OUT_OF_MEMORY else 1)


if __name__ == "__main__":
    match sys.argv[1]:
        case "hold":
            hold(Cuda(), int(sys.argv[2]))
        case "exceed":
            exceed(Cuda())
        case "processors":
            say(processors=Cuda().processors())
        case "fault":
            cuda = Cuda()
            say(result=cuda.run(cuda.kernel(FAULT, b"fault")))
