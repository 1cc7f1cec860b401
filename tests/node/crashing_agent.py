"""The agent, with a point at which it dies: `crashing_agent.py POINT agent ...`. Run by tests, in a node's box.

It is killed the moment it first gets there, together with its parent, so that nothing of it can go on.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuledger.agent.grants.files import GrantFiles
from gpuledger.agent.grants.starts import ContainerStarts
from gpuledger.agent.kubelet.device_plugin import DevicePlugin
from gpuledger.agent.kubelet.slot_owners import SlotOwners
from gpuledger.agent.node_entry import NodeAnnotation
from gpuledger.command_line.program import main


def die(*_: object) -> None:
    """End this process and its parent at once."""
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: type, name: str) -> None:
    """Die instead of doing this."""
    setattr(owner, name, die)


def after(owner: type, name: str) -> None:
    """Do this, and die before anybody hears of it."""
    done: Callable[..., Any] = getattr(owner, name)

    def once(*arguments: Any, **more: Any) -> None:
        done(*arguments, **more)
        die()

    async def once_awaited(*arguments: Any, **more: Any) -> None:
        await done(*arguments, **more)
        die()

    setattr(owner, name, once_awaited if done.__code__.co_flags & 0x80 else once)


def unfinished() -> None:
    """Die with a file written and not yet in place."""
    Path.replace = die  # type: ignore[method-assign, assignment]


POINTS: dict[str, Callable[[], None]] = {
    "before the node shows its cards": lambda: before(NodeAnnotation, "_write"),
    "after the node shows its cards": lambda: after(NodeAnnotation, "_write"),
    "before it is registered": lambda: before(DevicePlugin, "_register"),
    "after it is registered": lambda: after(DevicePlugin, "_register"),
    "before Allocate is answered": lambda: after(ContainerStarts, "allocate"),
    "before the slots' owner is known": lambda: before(SlotOwners, "find"),
    "after the slots' owner is known": lambda: after(SlotOwners, "find"),
    "with a file that is not in place": unfinished,
    "after the file is in place": lambda: after(GrantFiles, "write"),
    "before PreStartContainer is answered": lambda: after(DevicePlugin, "PreStartContainer"),
}

if __name__ == "__main__":
    POINTS[sys.argv.pop(1)]()
    main()
