"""A kubelet behind short paths: a unix socket's path has at most 107 bytes."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fakes.kubelet import Kubelet
from gpuledger.agent.kubelet import device_plugin


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as name:
        yield Path(name)


@pytest.fixture
async def kubelet(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kubelet]:
    """Return a kubelet that is not started yet; plugins look round quickly."""
    monkeypatch.setattr(device_plugin, "LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr(device_plugin, "LISTEN_GRACE_S", 60.0)  # the machine may be busy
    found = Kubelet(root)
    yield found
    await found.stop()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the sockets that plugins have looked for, in order; it grows."""
    found: list[Path] = []
    identity = device_plugin.socket_identity

    def look(socket: Path) -> tuple[int, int] | None:
        found.append(socket)
        return identity(socket)

    monkeypatch.setattr(device_plugin, "socket_identity", look)
    return found


@pytest.fixture
def until() -> Callable[[Callable[[], object]], object]:
    """Return what waits for a condition."""

    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - of another program, as it were
                await asyncio.sleep(0.005)

    return wait
