"""Freeze a file system again and again: `freeze.py DIRECTORY SECONDS TIMES`. Who writes to it waits meanwhile.

A process of its own, with the standard library only, that nobody should end: whoever waits for a file system that stays
frozen can't be killed, and the node with it.
"""

import fcntl
import os
import signal
import sys
import time

FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
"""See ioctl_fs(2)."""


def main(directory: str, for_s: float, times: int) -> None:
    """Do it, with as long pauses."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for _ in range(times):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.ioctl(handle, FIFREEZE, 0)
        try:
            time.sleep(for_s)
        finally:
            fcntl.ioctl(handle, FITHAW, 0)
            os.close(handle)
        time.sleep(for_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
