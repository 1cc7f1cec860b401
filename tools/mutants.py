"""Make small faults in the code, one at a time, and see whether the unit tests notice.

`python tools/mutants.py --count 40 --seed 1` changes a comparison, a constant, a condition or a call of the packages in
PACKAGES, in copies of this checkout, and runs the unit tests of that package there. A mutant that survives is a gap in
the tests, unless it means the same as before: a person has to look. It is a measurement, so it never fails for one.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = Path("operator") / "gpuledger"
PACKAGES = ("ledger", "placement", "workflows", "formats", "agent")
MORE_TESTS = {
    "ledger": ("tests/properties/test_ledger_machine.py",),
    "placement": ("tests/properties/test_placement.py", "tests/properties/test_victims.py"),
}
"""What tests a package besides its own folder of tests/unit."""

LEFT_OUT = ("_generated",)
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", ".hypothesis")
AT_LEAST_S, TIMES_AS_LONG = 60.0, 4.0
"""A mutant may loop for ever: it has so long, or this many times what the tests take without it."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}
SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
SAYS = frozenset({"debug", "info", "warning", "error", "exception"})
"""Methods of loggers: what is logged is not tested."""


@dataclass(frozen=True)
class Mutant:
    """One change: the text of lines `line` to `end_line` (from 1) and columns, in bytes, is replaced by `text`."""

    file: Path
    line: int
    column: int
    end_line: int
    end_column: int
    before: str
    """The first line of what is replaced, for a person."""
    text: str

    def of(self, source: str) -> str:
        """Return the source with the change in it."""
        lines = source.encode().splitlines(keepends=True)
        head = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        tail = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (head + self.text.encode() + tail).decode()

    @property
    def package(self) -> str:
        """The package that it is in."""
        return self.file.relative_to(SOURCES).parts[0]

    def __str__(self) -> str:
        """Return a line for a person."""
        before, after = (" ".join(text.split())[:60] for text in (self.before, self.text))
        return f"{self.file}:{self.line}  {before}  ->  {after}"


def mutants_of(source: str, file: Path) -> list[Mutant]:
    """Return every change that is known for a file, in the order of the text."""
    found, lines = [], source.encode().splitlines(keepends=True)
    for node in _nodes(ast.parse(source)):
        for changed in _changes(node):
            assert isinstance(node, ast.expr | ast.stmt)
            place = (node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)
            first = lines[node.lineno - 1][: place[3] if place[2] == node.lineno else None][node.col_offset :]
            before = first.decode(errors="replace")
            text = changed if isinstance(changed, str) else ast.unparse(changed)
            found.append(Mutant(file, *place, before, f"({text})" if isinstance(node, ast.expr) else text))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.column, mutant.text))


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what is executed: no annotations, no texts, nothing that is only logged."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise) or _only_says(child):
                continue
            yield child
            yield from _nodes(child)


def _only_says(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in SAYS


def _changes(node: ast.AST) -> Iterator[ast.AST | str]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            yield ast.Compare(node.left, [SWAPPED[type(op)]()], node.comparators)  # type: ignore[list-item]
        case ast.BoolOp():
            yield ast.BoolOp(SWAPPED[type(node.op)](), node.values)  # type: ignore[arg-type]
        case ast.BinOp() if type(node.op) in SWAPPED and not _is_text(node.left) and not _is_text(node.right):
            yield ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED_CALLS:
            yield ast.Call(ast.Name(SWAPPED_CALLS[name]), node.args, node.keywords)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "pass"
        case ast.Continue():
            yield "break"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def chosen(count: int, rng: random.Random) -> list[Mutant]:
    """Return mutants at random, as many of each package."""
    found: list[Mutant] = []
    for number, package in enumerate(PACKAGES):
        here = [mutant for file in _files(package) for mutant in mutants_of((REPOSITORY / file).read_text(), file)]
        wanted = (count + len(PACKAGES) - 1 - number) // len(PACKAGES)
        found += rng.sample(here, min(wanted, len(here)))
    return found


def _files(package: str) -> list[Path]:
    files = sorted((REPOSITORY / SOURCES / package).rglob("*.py"))
    return [file.relative_to(REPOSITORY) for file in files if not set(LEFT_OUT) & set(file.parts)]


class Copy:
    """A copy of the checkout in which one mutant at a time lives."""

    def __init__(self, directory: Path) -> None:
        self._root = directory
        shutil.copytree(REPOSITORY, directory, ignore=NOT_COPIED, dirs_exist_ok=True)

    def passes(self, package: str, first: Path | None, limit_s: float) -> bool:
        """Return whether the tests of a package pass; `first` is a module whose own tests come first."""
        tests = [f"tests/unit/{package}", *MORE_TESTS.get(package, ())]
        if first:
            own = Path("tests/unit") / first.relative_to(SOURCES).with_name(f"test_{first.name}")
            tests[:0] = [str(own)] if (self._root / own).exists() else []
        environment = {**os.environ, "PYTHONPATH": str(self._root / "operator"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command, cwd=self._root, env=environment, capture_output=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        if done.returncode not in (0, 1, 2):
            raise RuntimeError(f"{' '.join(command)} in {self._root}:\n{done.stdout.decode()[-2000:]}")
        return done.returncode == 0

    def survives(self, mutant: Mutant, limit_s: float) -> bool:
        """Return whether no test notices the mutant."""
        file = self._root / mutant.file
        before = file.read_text()
        file.write_text(mutant.of(before))
        try:
            return self.passes(mutant.package, mutant.file, limit_s)
        finally:
            file.write_text(before)


def measure(mutants: list[Mutant], jobs: int) -> dict[Mutant, bool]:
    """Return mutant -> whether it survives. Raises RuntimeError if the tests fail without any."""
    found: dict[Mutant, bool] = {}
    with tempfile.TemporaryDirectory(prefix="gpuledger-mutants-") as directory:
        free: queue.Queue[Copy] = queue.Queue()
        for number in range(jobs):
            free.put(Copy(Path(directory) / str(number)))

        def with_a_copy(package: str, mutant: Mutant | None, limit_s: float) -> bool:
            copy = free.get()
            try:
                return copy.survives(mutant, limit_s) if mutant else copy.passes(package, None, limit_s)
            finally:
                free.put(copy)

        limits_s = {}
        for package in sorted({mutant.package for mutant in mutants}):
            begin = time.monotonic()
            if not with_a_copy(package, None, 3600.0):
                raise RuntimeError(f"the tests of {package} fail without any mutant; mend them first")
            limits_s[package] = max(AT_LEAST_S, TIMES_AS_LONG * (time.monotonic() - begin))
        with ThreadPoolExecutor(jobs) as pool:
            asked = {pool.submit(with_a_copy, each.package, each, limits_s[each.package]): each for each in mutants}
            for done in as_completed(asked):
                mutant = asked[done]
                found[mutant] = done.result()
                print(f"{'SURVIVES' if found[mutant] else 'killed  '}  {mutant}", flush=True)
    return found


def main() -> int:
    """Measure, print what survives, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=40, help="how many mutants, over all packages")
    parser.add_argument("--seed", type=int, default=None, help="which ones; without it, others each time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    given = parser.parse_args()
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    print(f"{given.count} mutants, seed {seed}: `make mutants COUNT={given.count} SEED={seed}` makes the same ones")
    try:
        found = measure(chosen(given.count, random.Random(seed)), given.jobs)  # noqa: S311 - no secret
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{'':12}{'killed':>8}{'survive':>9}")
    counts = Counter((mutant.package, lives) for mutant, lives in found.items())
    for package in PACKAGES:
        print(f"{package:12}{counts[package, False]:>8}{counts[package, True]:>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
