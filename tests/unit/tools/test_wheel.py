"""The wheel of a release has all that the programs need, and gives kubectl its plugin, without PyPI."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gpuledger import __version__
from gpuledger.command_line.program import EXTRAS

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


# The client alone: what `pip install gpuledger` brings, without the server's packages.


def closure(required: Iterable[str]) -> set[str]:
    """Return the names of the distributions that these requirements bring, without extras."""
    found: set[str] = set()
    left = [Requirement(each) for each in required]
    while left:
        requirement = left.pop()
        if requirement.name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(requirement.name)
        left += map(Requirement, metadata.requires(requirement.name) or ())
    return found


@pytest.fixture(scope="module")
def client(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the wheel and its own dependencies, as a fresh environment would have them."""
    directory = tmp_path_factory.mktemp("client")
    wheel.extractall(directory)
    (about,) = directory.glob("*.dist-info/METADATA")
    for name in closure(message_from_bytes(about.read_bytes()).get_all("Requires-Dist") or ()):
        distribution = metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (directory / top).exists():
                (directory / top).symlink_to(Path(str(distribution.locate_file(top))))
    return directory


def run(client: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program with what is in a directory, and Python's own library."""
    code = "from gpuledger.command_line.program import main; main(prog_name='gpuledger')"
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(client), "HOME": str(client)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_client_does_without_the_servers_packages(client: Path) -> None:
    assert [module for module in EXTRAS if (client / module).exists()] == []
    assert "Look at the ledger" in run(client, "--help").stdout
    example = ROOT / "examples" / "01-share.yaml"
    assert run(client, "version", "--client").stdout == f"client    {__version__}\n"
    found = run(client, "inspect", "-f", str(example))
    assert (found.returncode, "Pod chat-1" in found.stdout) == (0, True), found.stderr
    assert "gpuallocations.gpuledger.dev" in run(client, "crd").stdout
    for command in ("top", "get", "doctor", "audit"):
        ended = run(client, command, *(["pods"] if command == "get" else []), "--kubeconfig", str(client / "no-file"))
        assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended.stderr


@pytest.mark.parametrize(("command", "extra"), [("simulate", "simulate"), ("run", "operator"), ("agent", "agent")])
def test_a_command_that_needs_more_says_what_to_install(client: Path, command: str, extra: str) -> None:
    kubeconfig = client / "kubeconfig"
    kubeconfig.write_text("{apiVersion: v1, kind: Config, current-context: ''}")
    examples = str(ROOT / "examples")
    more = ["-f", examples, "--policy", "fragmentation"] if command == "simulate" else ["--kubeconfig", str(kubeconfig)]
    ended = run(client, command, *more, *(["--node-name", "a"] if command == "agent" else []))
    assert (ended.returncode, f"gpuledger[{extra}]=={__version__}" in ended.stderr) == (2, True), ended.stderr
