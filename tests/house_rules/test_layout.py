"""Rules about the source itself that no other tool checks."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_source_root_is_no_package() -> None:
    """A package called `operator` would shadow the standard library's module."""
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_imports_go_one_way() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    found = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
