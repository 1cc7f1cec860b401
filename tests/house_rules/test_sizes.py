"""Functions, classes and files stay small enough to be read at once. Today's exceptions may only become fewer."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from house_rules.sources import PACKAGE, modules

ROOT = Path(__file__).parents[2]

LIMITS = {"lines of a file": 700, "methods of a class": 25, "lines of a function": 60, "arguments of a function": 8}

EXCEPTIONS: Mapping[str, Mapping[str, int]] = {
    "arguments of a function": {
        "command_line/commands/run.py::fake_nodes": 10,
        "command_line/commands/top.py::top": 11,
        "formats/scheduler.py::scheduler_configuration": 10,
    },
}
"""Measure -> file, or file::name -> how much it is. An exception that has become smaller is to be written down so."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def sizes() -> list[tuple[str, str, int]]:
    """Return of each file, class and function: measure, name, how much."""
    found = []
    for name, module in modules().items():
        found.append(("lines of a file", name, len((PACKAGE / name).read_text().splitlines())))
        found += _sizes_in(module, f"{name}::")
    return found


def _sizes_in(node: ast.AST, prefix: str) -> Iterator[tuple[str, str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield "lines of a function", prefix + child.name, _lines_of(child)
            yield "arguments of a function", prefix + child.name, _arguments_of(child)
        elif isinstance(child, ast.ClassDef):
            yield "methods of a class", prefix + child.name, sum(isinstance(each, Function) for each in child.body)
            if any("define(" in ast.unparse(each) for each in child.decorator_list):
                fields = [each for each in child.body if isinstance(each, ast.AnnAssign)]
                has_context = any("Component" in ast.unparse(each) for each in child.bases)
                yield "arguments of a function", f"{prefix}{child.name}.__init__", len(fields) + has_context
        if isinstance(child, Function | ast.ClassDef):
            yield from _sizes_in(child, f"{prefix}{child.name}.")
        else:
            yield from _sizes_in(child, prefix)


def _lines_of(function: Function) -> int:
    """Return the lines of a function's body, without its signature and its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return 0 if not body or function.end_lineno is None else function.end_lineno - body[0].lineno + 1


def _arguments_of(function: Function) -> int:
    given = function.args
    found = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return len([each for each in found if each.arg not in ("self", "cls")])


@pytest.mark.parametrize("measure", LIMITS)
def test_nothing_is_larger_than_one_can_read(measure: str) -> None:
    found = {name: size for kind, name, size in sizes() if kind == measure and size > LIMITS[measure]}
    assert found == dict(EXCEPTIONS.get(measure, {}))
