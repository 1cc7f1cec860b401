"""A checked expression as a Python function, with a limit to what one call may cost. Pure.

The CEL library parses and checks, and the tree that it returns is evaluated here: each node becomes a function once,
and these call each other. The library's own evaluation has no limit of time and memory, and loses memory in each call
of a function in Python: docs/decisions/11-own-cel-evaluation.md.

The cost of a call is counted in steps, of which one is about one node, and takes a microsecond at most: each node that
is not in a loop, in each turn of a loop the nodes in it, and what a function looks at or makes. All of this is counted
*before* it is done: values can share parts, and `[v, v]` some levels deep is more than anybody could walk through.

The library is Google's own (cel-expr-python, which wraps the C++ implementation). It has the grammar, the macros and
the type checker that the API server's library for Go has. It is loaded with the first selector, and not before.

Source of the environment that selectors are checked in: `newCompiler` of k8s.io/dynamic-resource-allocation 0.36
(cel/compile.go).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

from gpuledger.formats.resource_claims.cel.expression import (
    Call,
    Checked,
    Comprehension,
    Const,
    Ident,
    ListLiteral,
    MapLiteral,
    Node,
    Select,
    Unreadable,
    read_checked,
    walk,
)
from gpuledger.formats.resource_claims.cel.functions import (
    COSTS,
    DECLARED,
    ERROR_STEPS,
    FUNCTIONS,
    MOST_CLASSES,
    MOST_STEPS,
    Pattern,
    Run,
    classes,
)
from gpuledger.formats.resource_claims.cel.values import (
    OPERATORS,
    TYPE_NAMES,
    CelError,
    Optional,
    TypeValue,
    Unsupported,
    has,
    no_overload,
    select,
    type_name,
)
from gpuledger.model.errors import BadInput

Step = Callable[[Run], object]

MOST_PATTERNS = 8
"""Different regular expressions of one expression."""

_PLAIN = frozenset({"!_", "size", "type", "dyn"})
"""Operators whose cost does not depend on how large their operand is."""


class _NotEvaluated(Exception):  # noqa: N818
    """A part of an expression that is not evaluated here: the id of its node, and what is wrong."""

    def __init__(self, node_id: int, why: str) -> None:
        super().__init__(why)
        self.node_id = node_id


def compiled(text: str, checked: Checked) -> Step:
    """Return the expression as a function of a Run, which returns its value or raises CelError or Unsupported.

    Raises BadInput, with the place, for what is not evaluated here.
    """
    nodes = walk(checked.root)
    patterns = [found for found in map(literal_pattern, nodes) if found is not None]
    if len(patterns) > MOST_PATTERNS or sum(map(classes, patterns)) > MOST_CLASSES:
        raise BadInput(
            f"the expression has more than {MOST_PATTERNS} regular expressions, or more than {MOST_CLASSES} classes "
            "such as \\pL in them"
        )
    try:
        for node in nodes:
            if isinstance(node, Ident) and "." in node.name and text[checked.offsets[node.id] :][:1] != ".":
                # The library takes has(device.driver) for device.driver.
                raise _NotEvaluated(node.id, f"every device has {node.name}; ask for what is in it")
        whole, count = _step(checked.root), len(nodes)
    except _NotEvaluated as error:
        before = text[: checked.offsets.get(error.node_id, 0)]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        raise BadInput(f"{line}:{column}: {error}") from None

    def evaluate(run: Run) -> object:
        run.spend(count)
        return whole(run)

    return evaluate


def _step(node: Node) -> Step:
    if isinstance(node, Const):
        value = node.value
        return lambda run: value
    if isinstance(node, Ident):
        return _ident(node.name)
    if isinstance(node, Select):
        operand, name, read = _step(node.operand), node.field, has if node.test_only else select
        return lambda run: read(operand(run), name)
    if isinstance(node, Call):
        return _call(node)
    if isinstance(node, ListLiteral):
        return _list(node)
    if isinstance(node, MapLiteral):
        return _map(node)
    return _comprehension(node)


def _ident(name: str) -> Step:
    def read(run: Run) -> object:
        found = run.names[name] if name in run.names else _type(name)
        if isinstance(found, CelError):
            raise found
        return found

    return read


def _type(name: str) -> TypeValue:
    if name not in TYPE_NAMES:
        raise Unsupported(f"the name {name}")
    return TypeValue(name)


def literal_pattern(node: Node) -> str | None:
    """Return the regular expression of a call that has one as a literal."""
    if not isinstance(node, Call) or node.function not in ("matches", "find", "findAll") or len(node.args) < 2:
        return None
    found = node.args[1]
    return found.value if isinstance(found, Const) and isinstance(found.value, str) else None


def _call(node: Call) -> Step:
    steps = [_step(each) for each in node.args]
    name, literal = node.function, literal_pattern(node)
    if name not in OPERATORS and name not in FUNCTIONS and name not in _LAZY:
        raise _NotEvaluated(node.id, f"gpuledger does not evaluate {name}() in selectors")
    if literal is not None:
        pattern = Pattern(literal)
        if pattern.problem:
            raise _NotEvaluated(node.args[1].id, f"not a regular expression: {pattern.problem}")
        steps[1] = lambda run: pattern
    if name in _LAZY:
        return _LAZY[name](*steps)
    if name in _PLAIN:
        (only,), function = steps, OPERATORS[name]
        return lambda run: function(only(run))
    call = _counted(name, steps)
    if name in _FOLDED and all(isinstance(each, Const) for each in node.args):
        return _folded(call)
    return call


_FOLDED = frozenset({"quantity", "semver", "isQuantity", "isSemver", "-_"})


def _folded(call: Step) -> Step:
    """Return a call whose arguments never change as its value; if it fails, it does so each time."""
    try:
        value = call(Run({}, MOST_STEPS))
    except (CelError, Unsupported):
        return call
    return lambda run: value


def _counted(name: str, steps: list[Step]) -> Step:
    """Return a call that counts what it costs before it is made: all of its arguments, if there is nothing to say."""
    operator, overloads, cost = OPERATORS.get(name), FUNCTIONS.get(name, {}), COSTS.get(name)

    def call(run: Run) -> object:
        args = [step(run) for step in steps]
        found = operator or overloads.get(tuple(map(type, args)))
        if found is None:
            raise no_overload(name, *("" if isinstance(each, Pattern) else each for each in args))
        if cost is not None:
            cost(run, *args)
        else:
            for each in args:
                run.spend_on(each)
        return found(*args)

    return call


def _logical(name: str, one: Step, two: Step) -> Step:
    """Return && or ||: one side that decides is enough, whatever the other one does."""
    decides = name == "_||_"

    def evaluate(run: Run) -> object:
        problem: CelError | None = None
        left: object = None
        try:
            left = one(run)
        except CelError as error:
            run.spend(ERROR_STEPS)
            problem = error
        if left is decides:
            return decides
        try:
            right = two(run)
        except CelError as error:
            run.spend(ERROR_STEPS)
            raise problem or error from None
        if right is decides:
            return decides
        if problem:
            raise problem
        if isinstance(left, bool) and isinstance(right, bool):
            return not decides
        raise no_overload(name, left, right)

    return evaluate


def _choice(condition: Step, one: Step, two: Step) -> Step:
    def evaluate(run: Run) -> object:
        chosen = condition(run)
        if not isinstance(chosen, bool):
            raise no_overload("_?_:_", chosen)
        return one(run) if chosen else two(run)

    return evaluate


def _not_strictly_false(condition: Step) -> Step:
    def evaluate(run: Run) -> object:
        try:
            return condition(run) is not False
        except CelError:
            run.spend(ERROR_STEPS)
            return True

    return evaluate


def _alternative(name: str, one: Step, two: Step) -> Step:
    """Return `or` or `orValue` of an optional value."""

    def evaluate(run: Run) -> object:
        found = one(run)
        if not isinstance(found, Optional):
            raise no_overload(name, found)
        if found.present:
            return found.value if name == "orValue" else found
        return two(run)

    return evaluate


_LAZY: dict[str, Callable[..., Step]] = {
    "_&&_": partial(_logical, "_&&_"),
    "_||_": partial(_logical, "_||_"),
    "_?_:_": _choice,
    "@not_strictly_false": _not_strictly_false,
    "or": partial(_alternative, "or"),
    "orValue": partial(_alternative, "orValue"),
}
"""What does not look at all of its arguments: name -> from the arguments' functions to that of the call."""


def _list(node: ListLiteral) -> Step:
    steps = [_step(each) for each in node.elements]
    optional = node.optional
    if not optional:
        return lambda run: [step(run) for step in steps]

    def build(run: Run) -> object:
        found = []
        for place, step in enumerate(steps):
            value = step(run)
            if place not in optional:
                found.append(value)
            elif not isinstance(value, Optional):
                raise no_overload("optional element", value)
            elif value.present:
                found.append(value.value)
        return found

    return build


def _map(node: MapLiteral) -> Step:
    entries = [(_step(key), _step(value), optional) for key, value, optional in node.entries]

    def build(run: Run) -> object:
        found: dict[object, object] = {}
        for key_step, value_step, optional in entries:
            key, value = key_step(run), value_step(run)
            if not isinstance(key, str | int):
                raise CelError(f"unsupported key type: {type_name(key)}")
            if optional:
                if not isinstance(value, Optional):
                    raise no_overload("optional entry", value)
                if not value.present:
                    continue
                value = value.value
            if key in found:
                run.spend(len(found))
                if type(key) is type(next(each for each in found if each == key)):
                    found[key] = value
                    continue
                raise Unsupported("a map with the same number twice, as keys of different types")
            found[key] = value
        return found

    return build


def _comprehension(node: Comprehension) -> Step:
    over, start = _step(node.over), _step(node.start)
    condition, step, result = (_step(each) for each in (node.condition, node.step, node.result))
    variable, result_name = node.variable, node.result_name
    turn = 3 + len(walk(node.condition)) + len(walk(node.step))

    def fold(run: Run) -> object:
        items = over(run)
        if not isinstance(items, list | dict):
            raise CelError(f"a value of type {type_name(items)} has no items")
        names = run.names
        before = {name: names[name] for name in (variable, result_name) if name in names}
        try:
            names[result_name] = _held(start, run)
            for item in cast("list[object]", items):  # nothing changes a value
                run.spend(turn)
                names[variable] = item
                if _held(condition, run) is False:
                    break
                names[result_name] = _held(step, run)
            names.pop(variable, None)
            if variable in before:
                names[variable] = before[variable]
            return result(run)
        finally:
            for name in (variable, result_name):
                names.pop(name, None)
            names.update(before)

    return fold


def _held(step: Step, run: Run) -> object:
    """Return a value, or the error in its place: a fold may get over it in a later turn."""
    try:
        return step(run)
    except CelError as error:
        run.spend(ERROR_STEPS)
        return error


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
        "pattern": kinds.STRING,
        "int": kinds.INT,
        "double": kinds.DOUBLE,
        "bool": kinds.BOOL,
        "dyn": kinds.DYN,
    }
    overloads: dict[str, list[Any]] = {}
    for each in DECLARED:
        parameters = [types[name] for name in each.parameters]
        overload = cel.Overload(each.declaration, types[each.result], parameters, is_member=each.is_member)
        overloads.setdefault(each.name, []).append(overload)
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


def check(text: str) -> Checked:
    """Parse an expression and check its types. Raises BadInput with line and column, and what is wrong."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise BadInput("the expression is not a text that can be sent") from None
    if length > MOST_BYTES:
        raise BadInput(f"the expression is longer than {MOST_BYTES} bytes")
    if length << min(len(_DOUBLING.findall(text)), 16) > MOST_BYTES:
        raise BadInput("it has too many parts: each optMap() and optFlatMap() doubles what is before it")
    if len(_MACRO.findall(text)) > MOST_MACROS:
        raise BadInput(f"it has too many parts: more than {MOST_MACROS} macros")
    try:
        expression = _environment().compile(text)
        kind = expression.return_type().name()
    except (RuntimeError, ValueError) as error:
        raise BadInput(_problem(str(error))) from None
    if kind not in _ACCEPTED:
        raise BadInput(f"the expression is of type {kind.lower()}; it has to be true or false")
    try:
        return read_checked(expression.serialize())
    except Unreadable as error:
        raise BadInput(f"gpuledger does not evaluate this expression: {error}") from None


def _problem(told: str) -> str:
    match = _PROBLEM.search(told)
    if "recursion" in told:
        return "the expression is nested deeper than the 32 levels that gpuledger reads; write a chain of && or || flat"
    if not match:
        return " ".join(told.split())[:300]
    text = match["text"].replace(" (in container '')", "")[:300]
    return f"{match['line']}:{match['column']}: {text}"
