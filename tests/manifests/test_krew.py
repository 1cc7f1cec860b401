"""krew installs kubectl's plugin from the archive that a release has, and it runs without a Python beside it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from build_control_plane import ensure_binaries, ensure_krew
from build_steps import BuildError
from fakes.scenes import NODE_A
from gpuledger import __version__
from krew_archive import make_archive, manifest
from requirements import require

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-share.yaml"


@pytest.fixture(scope="module")
def krew() -> Path:
    try:
        return ensure_krew()
    except BuildError as error:
        require("krew can't be built, so nobody installs the plugin", str(error))
        raise


@pytest.mark.timeout(600)
def test_the_archive_of_a_release_is_installed_and_kubectl_finds_the_plugin(krew: Path, tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    file = tmp_path / "gpuledger.yaml"
    file.write_text(yaml.safe_dump(manifest([archive], "https://example.com/releases")))
    root = tmp_path / "krew"
    environment = {"HOME": str(tmp_path), "KREW_ROOT": str(root), "PATH": f"{krew.parent}:{os.environ['PATH']}"}

    def run(*argv: str, path: str = environment["PATH"]) -> str:
        done = subprocess.run(
            argv, env={**environment, "PATH": path}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(str(krew), "install", f"--manifest={file}", f"--archive={archive}")
    alone = f"{root / 'bin'}:{ensure_binaries()}"
    assert run("kubectl", "gpuledger", "--version", path=alone).strip() == f"gpuledger, version {__version__}"
    assert "Pod chat-1" in run("kubectl", "gpuledger", "inspect", "-f", str(EXAMPLE), path=alone)
    node = tmp_path / "node.json"
    node.write_text(json.dumps(NODE_A))
    assert "chat-1" in run("kubectl", "gpuledger", "simulate", "-f", str(node), "-f", str(EXAMPLE), path=alone)


def test_the_manifest_names_the_archives_of_all_machines(tmp_path: Path) -> None:
    names = ("darwin_arm64", "linux_amd64")
    archives = [tmp_path / f"kubectl-gpuledger_{name}.tar.gz" for name in names]
    for archive in archives:
        archive.write_bytes(archive.name.encode())
    platforms = manifest(archives, "https://example.com/releases/")["spec"]["platforms"]
    assert ["_".join(each["selector"]["matchLabels"].values()) for each in platforms] == list(names)
    assert [each["uri"].rpartition("/")[2] for each in platforms] == [archive.name for archive in archives]
    assert len({each["sha256"] for each in platforms}) == 2
