"""What a selector may speak of, told to the CEL library, which parses and checks it. Pure.

The library is Google's own (cel-expr-python, which wraps the C++ implementation). It has the grammar, the macros and
the type checker that the API server's library for Go has. It is loaded with the first selector, and not before.

Source of the environment: `newCompiler` of k8s.io/dynamic-resource-allocation 0.36 (cel/compile.go).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from gpuledger.formats.resource_claims.cel.expression import Checked, Unreadable, read_checked
from gpuledger.formats.resource_claims.cel.functions import DECLARED
from gpuledger.formats.resource_claims.cel.patterns import MOST_CLASSES
from gpuledger.model.errors import BadInput

DRIVER, ATTRIBUTES, CAPACITY = "device.driver", "device.attributes", "device.capacity"
SHARED = "device.allowMultipleAllocations"

MOST_BYTES = 10 * 1024
"""Of an expression, as the API server has it (CELSelectorExpressionMaxLength)."""

MOST_MACROS = 128
"""Of an expression: each becomes some hundred bytes of what is read, see `expression.MOST_BYTES`."""

_MACRO = re.compile(r"\b(?:all|exists|exists_one|map|filter|bind|optMap|optFlatMap)\s*\(")
_DOUBLING = re.compile("optMap|optFlatMap")
"""Macros that become two of what stands before them: the library makes hundreds of MiB of sixteen in a row."""

_PROBLEM = re.compile(r"ERROR: <input>:(?P<line>-?\d+):(?P<column>-?\d+): (?P<text>[^\n]*)")
_SIGNATURE = re.compile(r"(?:(?P<target>\w+)\.(?=\w+\())?(?P<name>[\w.]+)\((?P<parameters>[\w,]*)\) (?P<result>\w+)")
_TYPES_WITH_MEMBERS = frozenset({"quantity", "semver", "string", "list", "texts"})
_ACCEPTED = frozenset({"BOOL", "DYN"})


@cache
def _environment() -> Any:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional

    kinds = cel.Type
    quantity = kinds.AbstractType("kubernetes.Quantity")
    types = {
        "quantity": quantity,
        "semver": kinds.AbstractType("kubernetes.Semver"),
        "texts": kinds.List(kinds.STRING),
        "list": kinds.List(kinds.DYN),
        "string": kinds.STRING,
        "int": kinds.INT,
        "double": kinds.DOUBLE,
        "bool": kinds.BOOL,
        "dyn": kinds.DYN,
    }
    overloads: dict[str, list[Any]] = {}
    for line in DECLARED.split("\n"):
        match = _SIGNATURE.fullmatch(line)
        if not match:
            continue
        target, name = match["target"], match["name"]
        if target and target not in _TYPES_WITH_MEMBERS:  # a name with a dot, such as sets.contains
            target, name = None, f"{target}.{name}"
        parameters = [types[each] for each in match["parameters"].split(",") if each]
        if target:
            parameters.insert(0, types[target])
        overload = cel.Overload(line, types[match["result"]], parameters, is_member=bool(target))
        overloads.setdefault(name, []).append(overload)
    return cel.NewEnv(
        variables={
            DRIVER: kinds.STRING,
            SHARED: kinds.BOOL,
            ATTRIBUTES: kinds.Map(kinds.STRING, kinds.Map(kinds.STRING, kinds.DYN)),
            CAPACITY: kinds.Map(kinds.STRING, kinds.Map(kinds.STRING, quantity)),
        },
        extensions=[ext_optional.ExtOptional(), ext_bindings.ExtBindings()],
        functions=[cel.FunctionDecl(name, listed) for name, listed in overloads.items()],
    )


def load() -> None:
    """Load the library, as the first check does otherwise: half a second, where its file has to come from a disk."""
    _environment()


def check_cost(text: str) -> int:
    """Return about how many steps of an evaluation it takes to check an expression: some 100 ms at most."""
    macros, classes = min(len(_MACRO.findall(text)), MOST_MACROS), min(text.lower().count("\\p"), MOST_CLASSES)
    return 2_000 + 8 * len(text) + 400 * macros + 7_000 * classes


def check(text: str, where: str) -> Checked:
    """Parse an expression and check its types. Raises BadInput with `where`, line and column, and what is wrong."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise BadInput(f"{where}: the expression is not a text that can be sent") from None
    if length > MOST_BYTES:
        raise BadInput(f"{where}: the expression is longer than {MOST_BYTES} bytes")
    if length << min(len(_DOUBLING.findall(text)), 16) > MOST_BYTES:
        raise BadInput(f"{where}: it has too many parts: each optMap() and optFlatMap() doubles what is before it")
    if len(_MACRO.findall(text)) > MOST_MACROS:
        raise BadInput(f"{where}: it has too many parts: more than {MOST_MACROS} macros")
    try:
        expression = _environment().compile(text)
        kind = expression.return_type().name()
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"{where}: {_problem(str(error))}") from None
    if kind not in _ACCEPTED:
        raise BadInput(f"{where}: the expression is of type {kind.lower()}; it has to be true or false")
    try:
        return read_checked(expression.serialize())
    except Unreadable as error:
        raise BadInput(f"{where}: gpuledger does not evaluate this expression: {error}") from None


def _problem(told: str) -> str:
    match = _PROBLEM.search(told)
    if "recursion" in told:
        return "the expression is nested deeper than the 32 levels that gpuledger reads; write a chain of && or || flat"
    if not match:
        return " ".join(told.split())[:300]
    text = match["text"].replace(" (in container '')", "")[:300]
    return f"{match['line']}:{match['column']}: {text}"


def place_of(text: str, checked: Checked, node_id: int) -> str:
    """Return line and column of a node, both from 1."""
    before = text[: checked.offsets.get(node_id, 0)]
    return f"{before.count(chr(10)) + 1}:{len(before) - (before.rfind(chr(10)) + 1) + 1}"
