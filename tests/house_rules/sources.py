"""The program's modules as syntax trees, parsed once for all rules about them."""

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "operator" / "gpuledger"


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return path within the package -> syntax tree, of each module that was not generated."""
    names = (file.relative_to(PACKAGE) for file in sorted(PACKAGE.rglob("*.py")))
    return {str(name): ast.parse((PACKAGE / name).read_text()) for name in names if "_generated" not in name.parts}


def outside(place: str) -> dict[str, ast.Module]:
    """Return the modules that are not in one of the program's packages, or all but one module, by its file's name."""
    return {name: module for name, module in modules().items() if name != place and not name.startswith(f"{place}/")}
