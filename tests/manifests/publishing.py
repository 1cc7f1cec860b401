"""What tests of `make publish` need: a registry on this machine, and a clean checkout."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from build_control_plane import ensure_crane
from child_process import dying_with_parent
from installation import REPOSITORY

START_TIMEOUT_S = 10.0


@contextlib.contextmanager
def a_registry() -> Iterator[str]:
    """Serve a registry that keeps everything in memory; yield its host and port. Raises BuildError."""
    argv = [str(ensure_crane()), "registry", "serve", "--address", "127.0.0.1:0"]
    with tempfile.NamedTemporaryFile("r") as log:
        with Path(log.name).open("w") as output:
            process = subprocess.Popen(dying_with_parent(argv, signal.SIGTERM), stdout=output, stderr=output)
        try:
            end_s = time.monotonic() + START_TIMEOUT_S
            while not (found := re.search(r"serving on port (\d+)", Path(log.name).read_text())):
                assert time.monotonic() < end_s, Path(log.name).read_text()
                time.sleep(0.05)
            yield f"127.0.0.1:{found[1]}"
        finally:
            process.terminate()
            process.wait(10)


def clean_checkout(directory: Path) -> Path:
    """Return a repository whose one commit is the state of this checkout, also of what is not committed here."""
    copy = directory / "checkout"
    listed = _git(REPOSITORY, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    for name in filter(None, listed):
        if (REPOSITORY / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, copy / name)
    _git(copy, "init", "--quiet")
    commit_all(copy)
    return copy


def commit_all(checkout: Path) -> None:
    """Commit what has changed."""
    _git(checkout, "add", "--all")
    person = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    _git(checkout, *person, "commit", "--quiet", "--no-verify", "--message", "All of it")


def _git(directory: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=True).stdout


def publish(checkout: Path, *arguments: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Publish what is in a checkout; return the exit status, and all that is printed."""
    argv = [sys.executable, str(checkout / "tools" / "publish.py"), *arguments]
    done = subprocess.run(
        argv, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout
