"""The shell of a person who types the commands of the documents."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from build_control_plane import ensure_binaries

TIMEOUT_S = 240


@dataclass(frozen=True)
class Shell:
    """A terminal in a directory, with variables beside those of this process."""

    directory: Path
    variables: Mapping[str, str]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=self.directory,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def for_cluster(kubeconfig: Path, directory: Path) -> dict[str, str]:
    """Return the variables for kubectl and our programs on a cluster; what is in the directory is found first."""
    programs = [str(directory), str(Path(sys.executable).parent), str(ensure_binaries()), os.environ["PATH"]]
    return {
        "PATH": os.pathsep.join(programs),
        "KUBECONFIG": str(kubeconfig),
        "KUBECACHEDIR": str(directory / "kubectl-cache"),
        "KUBERC": "off",
    }
