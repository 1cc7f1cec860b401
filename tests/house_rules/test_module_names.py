"""Documents and docstrings name modules that exist: what was moved or merged is named where it is now."""

import functools
import re
from pathlib import Path

import pytest

from house_rules.sources import PACKAGE

ROOT = Path(__file__).parents[2]
MODULE = re.compile(r"(?<![\w/.-])((?:[\w-]+/)*[a-z]\w*\.py)\b")
WHERE = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(PACKAGE.rglob("*.py")),
]


@functools.cache
def modules() -> list[str]:
    """Return the path of each module, from the root of the checkout."""
    files = (file for directory in ("operator", "tests", "tools") for file in (ROOT / directory).rglob("*.py"))
    return [f"/{file.relative_to(ROOT)}" for file in files]


@pytest.mark.parametrize("file", WHERE, ids=lambda file: str(file.relative_to(ROOT)))
def test_modules_that_are_named_exist(file: Path) -> None:
    named = set(MODULE.findall(file.read_text()))
    assert sorted(name for name in named if not any(path.endswith(f"/{name}") for path in modules())) == []
