"""kube-scheduler's configuration, through a pipe.

A kube-scheduler that starts beside an operator that hangs must not take the Lease, and may be quicker than the other
replica's. It reads its configuration first of all. So that is a named pipe, which the operator fills while its event
loop runs: until then, kube-scheduler waits in its first read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.scheduler import scheduler_configuration, url_with


def scheduler_config_text(settings: Settings, leader_elect: bool, secret: str = "") -> str:
    """Return the configuration that goes with the settings, as YAML. Raises BadInput: the words can't be used.

    With the extender's secret, it is one itself.
    """
    configuration = scheduler_configuration(
        settings.scheduler_names,
        dialects_of(settings),
        url_with(settings.extender_url, secret),
        settings.extender_timeout_s,
        leader_elect,
        settings.nodes_offered,
        settings.native_gangs,
        settings.resource_claims,
        settings.all_drivers_scheduler_name,
        settings.gather_s,
    )
    return yaml.safe_dump(configuration, sort_keys=False)


def make_pipe(path: Path) -> None:
    """Let there be a named pipe at a path; one that is there stays, for a reader may wait for its content."""
    if not (path.exists() and stat.S_ISFIFO(path.stat().st_mode)):
        _replace_by_pipe(path)


@contextlib.asynccontextmanager
async def given_through(path: Path, content: str) -> AsyncIterator[ConfigPipe]:
    """Give a content to each reader of the pipe at a path, while the running loop answers and the context lasts."""
    pipe = ConfigPipe(path, content, asyncio.get_running_loop())
    pipe.start()
    try:
        yield pipe
    finally:
        await asyncio.to_thread(pipe.stop)


class ConfigPipe:
    """A thread that waits for readers: opening a pipe blocks until there is one, and nothing else reports one.

    Beside the pipe is a file with a digest of the content last given through it, which outlives this process: an
    operator that starts with other settings knows by it that kube-scheduler, which has gone on, still has the old ones.
    """

    def __init__(self, path: Path, content: str, loop: asyncio.AbstractEventLoop) -> None:
        self._path, self._content, self._loop = path, content.encode(), loop
        self._given = path.with_name(f".{path.name}.given")
        self._digest = hashlib.sha256(self._content).hexdigest()
        self.is_outdated = self._last_given() not in ("", self._digest)
        """Whether the last reader got another content: it has to start again."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="give kube-scheduler its configuration", daemon=True)

    def start(self) -> None:
        """Begin. Raises OSError: there can be no pipe at this path."""
        make_pipe(self._path)
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the end. The loop must go on meanwhile."""
        self._stopped = True
        with contextlib.suppress(FileNotFoundError):
            reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)  # for which the thread waits
            self._thread.join()
            os.close(reader)

    def _run(self) -> None:
        while not self._stopped:
            # Killed or stopped, this process holds its end no more or is silent: the reader starts again, or waits.
            with open(self._path, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
                self._wait_for_loop()
                # One reader for each pipe. It ends to read when no writer is left, so the next may not open the same.
                _replace_by_pipe(self._path)
                if not self._stopped:
                    pipe.write(self._content)
                    self._note_given()

    def _last_given(self) -> str:
        try:
            return self._given.read_text()
        except FileNotFoundError:
            return ""

    def _note_given(self) -> None:
        fresh = self._given.with_name(f"{self._given.name}.new")
        fresh.write_text(self._digest)
        fresh.replace(self._given)
        self.is_outdated = False

    def _wait_for_loop(self) -> None:
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        answered.wait()


def _replace_by_pipe(path: Path) -> None:
    fresh = path.with_name(f".{path.name}")
    fresh.unlink(missing_ok=True)
    os.mkfifo(fresh, mode=0o644)
    fresh.rename(path)
