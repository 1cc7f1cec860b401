"""The wheel of a release has all that the programs need, and gives kubectl its plugin, without PyPI."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "operator" / "gpuledger"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Return the wheel that `make wheel` makes."""
    directory = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (file,) = directory.glob("*.whl")
    with zipfile.ZipFile(file) as found:
        yield found


def test_it_has_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    wanted = {
        str(file.relative_to(PACKAGE.parent))
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc"
    }
    assert wanted - set(wheel.namelist()) == set()


def test_its_programs_run(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    (entry_points,) = tmp_path.glob("*.dist-info/entry_points.txt")
    parser = ConfigParser()
    parser.read(entry_points)
    programs = dict(parser["console_scripts"])
    assert programs.keys() == {"gpuledger", "kubectl-gpuledger", "kubectl_complete-gpuledger"}
    module, _, function = programs["kubectl-gpuledger"].partition(":")
    code = (
        f"import {module} as m, sys; sys.argv = ['kubectl-gpuledger', '--version']; print(m.__file__); m.{function}()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    where, version = done.stdout.splitlines()
    assert Path(where).is_relative_to(tmp_path)
    assert version.startswith("gpuledger, version ")
