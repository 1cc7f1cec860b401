"""The small faults that `make mutants` makes."""

import ast
import random
from pathlib import Path

import pytest

from mutants import PACKAGES, SOURCES, chosen, mutants_of

FILE = SOURCES / "ledger" / "some.py"


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("a < b", {"(a <= b)"}),
        ("a in b", {"(a not in b)"}),
        ("a and b", {"(a or b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = a + b", {"x = (a - b)"}),
        ("x = True", {"x = (False)"}),
        ("x = 7", {"x = (8)"}),
        ("x = a if b else c", {"x = (c if b else a)"}),
        ("x = min(a, b)", {"x = (max(a, b))"}),
        ("f(a)", {"pass"}),
        ("x = a < b < 3", {"x = a < b < (4)"}),
    ],
)
def test_a_fault_is_one_small_change_of_the_text(source: str, changed: set[str]) -> None:
    assert {mutant.of(source) for mutant in mutants_of(source, FILE)} == changed


@pytest.mark.parametrize(
    "source", ['"""A text."""', "x: Literal[1]", 'raise E(f"{a + 1}")', "logger.info(a + 1)", "@d(1)\ndef f(): ..."]
)
def test_what_no_test_could_notice_is_left_alone(source: str) -> None:
    assert mutants_of(source, FILE) == []


def test_what_stands_after_letters_that_take_several_bytes_is_found() -> None:
    (mutant,) = mutants_of('x = "äöü", a < b', FILE)
    assert mutant.of('x = "äöü", a < b') == 'x = "äöü", (a <= b)'


@pytest.mark.thorough
def test_mutants_of_the_real_code_are_of_all_packages_and_can_be_compiled() -> None:
    found = chosen(50, random.Random(1))  # noqa: S311 - no secret
    assert {mutant.package for mutant in found} == set(PACKAGES)
    root = Path(__file__).parents[3]
    for mutant in found:
        source = (root / mutant.file).read_text()
        assert ast.dump(ast.parse(mutant.of(source))) != ast.dump(ast.parse(source)), mutant
