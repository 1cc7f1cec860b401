"""What is deleted from the image's packages is what nothing there imports, and what is left is all that runs."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import trim_packages

pytestmark = pytest.mark.thorough  # copies and imports of all packages: seconds in which one waits

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements" / "runtime.txt"

OF_SOME_PYTHONS = {"bazel-project", "numpy/distutils"}
ASKING_FOR_MORE = {
    "numpy/__init__.py",  # when somebody asks for it
    *("numpy/_pytesttester.py", "numpy/ma/testutils.py"),  # for tests of numpy itself
}
"""Files with imports of what is deleted, which do not run here."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two directories with the locked packages of this environment: as they are, and trimmed."""
    whole, trimmed = (tmp_path_factory.mktemp("packages") / name for name in ("whole", "trimmed"))
    for line in LOCK.read_text().splitlines():
        if not re.match(r"[a-z0-9]", line):
            continue
        wheel = Requirement(line.rstrip(" \\"))
        if wheel.marker is None or wheel.marker.evaluate():
            for file in metadata.distribution(wheel.name).files or ():
                if file.suffix != ".pyc" and ".." not in file.parts:
                    link(Path(str(file.locate())), whole / file)
    shutil.copytree(whole, trimmed, copy_function=link)
    trim_packages.trim(trimmed)
    return whole, trimmed


def link(file: str | Path, to: str | Path) -> None:
    """Copy a file; on one file system, without its content."""
    Path(to).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)


def python(packages: Path, *arguments: str) -> str:
    """Run Python with these packages and gpuledger, and with no others; return what it prints."""
    places = {"PYTHONPATH": os.pathsep.join([str(packages), str(ROOT / "operator")]), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-S", "-P", *arguments]
    done = subprocess.run(argv, env={**os.environ, **places}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_all_that_gpuledger_imports_is_left(packages: tuple[Path, Path]) -> None:
    _, trimmed = packages
    said = python(trimmed, str(ROOT / "tools" / "trim_packages.py"), "--check")
    assert int(said.split()[0]) > 1000
    assert "customresourcedefinition" in python(trimmed, "-m", "gpuledger", "crd").lower()


def test_kopf_has_the_classes_that_it_asks_for(packages: tuple[Path, Path]) -> None:
    """In `kopf run`, too, which imports it before gpuledger says how."""
    names = [f"kopf._cogs.helpers.thirdparty.{name}Async.__name__" for name in ("V1ObjectMeta", "V1OwnerReference")]
    code = f"import kopf, gpuledger.controller.kopf_frame; print({', '.join(names)})"
    assert python(packages[1], "-c", code).split() == ["V1ObjectMeta", "V1OwnerReference"]


def test_it_is_half_of_them(packages: tuple[Path, Path]) -> None:
    whole, trimmed = packages
    assert size(trimmed) < 0.6 * size(whole)


def test_nothing_that_is_left_imports_what_is_deleted(packages: tuple[Path, Path]) -> None:
    whole, trimmed = packages
    deleted = modules(whole) - modules(trimmed)
    asking = {
        str(file.relative_to(trimmed))
        for file in trimmed.rglob("*.py")
        if deleted & imported(file, file.relative_to(trimmed).parts[:-1])
    }
    assert asking == ASKING_FOR_MORE
    assert len(deleted) > 900


def modules(packages: Path) -> set[str]:
    """Return the names of all modules, compiled ones too."""
    files = (path.relative_to(packages) for path in packages.rglob("*") if path.suffix in (".py", ".so"))
    named = (".".join([*file.parts[:-1], file.name.partition(".")[0]]) for file in files)
    return {name.removesuffix(".__init__") for name in named}


def imported(file: Path, package: tuple[str, ...]) -> set[str]:
    """Return all names that a file imports, wherever in it: of modules, and what may be one."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text(errors="replace"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{each.name}" for each in node.names)}
    return found


def test_each_pattern_still_finds_something(packages: tuple[Path, Path]) -> None:
    whole, _ = packages
    library = whole / trim_packages.LIBRARY
    patterns = {f"**/*.{suffix}" for suffix in trim_packages.SOURCES} | set(trim_packages.UNUSED) - OF_SOME_PYTHONS
    assert {pattern for pattern in patterns if not any(whole.glob(pattern))} == set()
    assert {pattern for pattern in trim_packages.KEPT_OF_LIBRARY if not any(library.glob(pattern))} == set()


def test_a_library_without_symbols_is_another_file_and_what_is_none_stays(tmp_path: Path) -> None:
    """Its other name, in an environment of which it is a link, keeps all of it."""
    compiled = next(Path(str(file.locate())) for file in metadata.files("uvloop") or () if file.suffix == ".so")
    before = compiled.stat()
    link(compiled, tmp_path / "loop.so")
    (tmp_path / "script.so").write_text("INPUT(libm.so.6)")
    for path in tmp_path.iterdir():
        trim_packages.strip(path)
    assert (tmp_path / "script.so").read_text() == "INPUT(libm.so.6)"
    assert (tmp_path / "loop.so").stat().st_size < before.st_size / 2
    assert compiled.stat().st_size == before.st_size
    assert (tmp_path / "loop.so").stat().st_mode == before.st_mode
