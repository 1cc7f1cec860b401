"""Makes what krew installs: an archive in which kubectl's plugin runs by itself, and the manifest that names it.

Python and all compiled libraries are in the archive (by PyInstaller), for this machine's system and architecture, and
on Linux for its C library or a newer one. The manifest names the archives of all machines that lie beside each other.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gpuledger import __version__

REPOSITORY = Path(__file__).resolve().parent.parent
TARGET = REPOSITORY / "build" / "dist"
NAME = "kubectl-gpuledger"
HERE = "https://example.com/gpuledger"
"""Where the archive is published, unless that is said."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
"""Of this machine, as Python and as Go name them. Its system has one name in both, but for the capital."""

LEFT_OUT = (
    *("matplotlib", "PIL", "pygments", "setuptools"),
    *("grpc_tools", "hypothesis", "mypy", "pytest"),
    *("google", "grpc", "httptools", "kopf", "pynvml", "uvloop"),  # the operator's and the agent's
    *("numpy.f2py", "numpy.testing"),
)
"""What libraries would load if it were there, and the plugin does without."""

PROGRAM = """import os, sys
from gpuledger.command_line import program

completes = os.path.basename(sys.argv[0]).startswith("kubectl_complete")
(program.kubectl_complete if completes else program.kubectl_main)()
"""

DESCRIPTION = (
    "Shows which pod holds which share of a GPU, why a pod waits for one, and what happened to it, in clusters that "
    "run gpuledger; and cordons and drains GPUs."
)


def here() -> str:
    """Return this machine's system and architecture, linux_amd64. Raises KeyError for one that is not known."""
    return f"{platform.system().lower()}_{ARCHITECTURES[platform.machine()]}"


def make_archive(target: Path) -> Path:
    """Build the archive, in half a minute, and return it. Raises CalledProcessError with what PyInstaller says."""
    target.mkdir(parents=True, exist_ok=True)
    archive = target / f"{NAME}_{here()}.tar.gz"
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "plugin.py").write_text(PROGRAM)
        built = _built(Path(scratch))
        with tarfile.open(archive, "w:gz", compresslevel=6, dereference=True) as tar:  # krew takes no links
            tar.add(built, NAME)
            tar.add(REPOSITORY / "LICENSE", "LICENSE")
    return archive


def _built(directory: Path) -> Path:
    """Return a directory with the program and all that it loads."""
    argv = [
        *(sys.executable, "-m", "PyInstaller", "--noconfirm", "--onedir", "--log-level=ERROR", f"--name={NAME}"),
        *("--collect-submodules=gpuledger", "--collect-data=gpuledger"),
        *(f"--exclude-module={name}" for name in LEFT_OUT),
        *(f"--distpath={directory / 'dist'}", f"--workpath={directory / 'work'}", f"--specpath={directory}"),
        str(directory / "plugin.py"),
    ]
    settings = {"PYINSTALLER_CONFIG_DIR": str(directory / "config")}
    subprocess.run(argv, check=True, cwd=directory, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True)
    return directory / "dist" / NAME


def manifest(archives: Sequence[Path], url: str) -> dict[str, Any]:
    """Return krew's manifest of archives, one for each platform, that are published under a URL."""
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gpuledger"},
        "spec": {
            "version": f"v{__version__}",
            "shortDescription": "Show who holds which GPU, and why pods wait",
            "description": DESCRIPTION,
            "platforms": [_platform(archive, url) for archive in archives],
        },
    }


def _platform(archive: Path, url: str) -> dict[str, Any]:
    system, architecture = archive.name.removesuffix(".tar.gz").split("_")[-2:]
    return {
        "selector": {"matchLabels": {"os": system, "arch": architecture}},
        "uri": f"{url.rstrip('/')}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": f"{NAME}/{NAME}",
    }


def main() -> int:
    """Make both, say where they are, and return the exit status."""
    url = sys.argv[1] if len(sys.argv) > 1 else HERE
    archive = make_archive(TARGET)
    file = TARGET / "gpuledger.yaml"
    archives = sorted(TARGET.glob(f"{NAME}_*_*.tar.gz"))
    file.write_text(yaml.safe_dump(manifest(archives, url), sort_keys=False))
    print(f"{archive.relative_to(REPOSITORY)}: {archive.stat().st_size / 1e6:.0f} MB")
    print(f"{file.relative_to(REPOSITORY)}, for {url}: {', '.join(each.name for each in archives)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
