"""Whoever stays beside an installation hears of each of its programs that has ended."""

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from control_plane import ControlPlane, ControlPlaneError, ManagedProcess
from installation import Installation


class Plane:
    """Starts programs, and has no control plane."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.kubeconfig = directory, directory / "kubeconfig"

    def start_program(self, name: str, argv: list[str], *_: Any, **__: Any) -> ManagedProcess:
        return ManagedProcess(
            name, [sys.executable, "-c", "import time; print('soon'); time.sleep(600)"], self.directory / name
        )


def test_the_end_of_the_program_that_plays_kubelets_is_told_with_its_last_words(tmp_path: Path) -> None:
    installation = Installation(cast("ControlPlane", Plane(tmp_path)))
    kubelets = installation.fake_nodes(stay=True)
    installation.ensure_alive()
    kubelets.kill()
    with pytest.raises(ControlPlaneError, match="fake-nodes"):
        installation.ensure_alive()
