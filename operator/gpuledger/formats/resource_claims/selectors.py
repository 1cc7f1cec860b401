"""CEL selectors of ResourceClaims and DeviceClasses: which devices, and so which cards, a claim may have. Pure.

A device for which the expression fails is not chosen. kube-scheduler goes further: it does not place the pod at all
while a device that it looks at makes it fail. The sentence is kept for whoever asks why a card is not taken.

Source: resource.k8s.io/v1 (CELDeviceSelector), and `DeviceMatches` of k8s.io/dynamic-resource-allocation 0.36
(cel/compile.go).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from gpuledger.formats.resource_claims.cel.environment import (
    ATTRIBUTES,
    CAPACITY,
    DRIVER,
    SHARED,
    check,
    place_of,
)
from gpuledger.formats.resource_claims.cel.evaluation import MOST_STEPS, Run, Step, compiled, unknown_function, walk
from gpuledger.formats.resource_claims.cel.expression import Call, Checked, Const, Ident
from gpuledger.formats.resource_claims.cel.patterns import pattern_problem
from gpuledger.formats.resource_claims.cel.quantities import TooLong, parse_quantity
from gpuledger.formats.resource_claims.cel.values import CelError, DomainMap, Unsupported
from gpuledger.formats.resource_claims.cel.versions import parse_version
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput, GpuledgerError

_KEPT_EXPRESSIONS = 512
_KEPT_DEVICES = 4096


ORDINARY_STEPS, MOST_STEPS_OF_ALL = 500, 200 * MOST_STEPS
"""An evaluation with more steps than the first number is expensive. An expression may cost the second one in such
evaluations, for all devices together, and none after that: a second or so of the operator's time."""


class SelectorError(GpuledgerError):
    """An expression that fails for a device. `str()` says why."""


class SelectorRefused(SelectorError):  # noqa: N818
    """An expression that gpuledger does not evaluate for a device, and Kubernetes would."""


@dataclass(slots=True)
class _Allowance:
    """Steps that are left for expensive evaluations of one expression."""

    left: int


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled expression. Two with the same text are the same."""

    text: str
    _step: Step = field(compare=False, repr=False)
    _allowance: _Allowance = field(compare=False, repr=False)

    def matches(self, device: Mapping[str, object]) -> bool:
        """Tell whether a device is meant: one of a ResourceSlice's `spec.devices`, with its `driver` beside.

        Raises SelectorError if the expression fails for it, or the device is not one.
        """
        return self.accepts(seen_of(device))

    def accepts(self, seen: Mapping[str, object]) -> bool:
        """Do the same for what `seen_of` made of a device. Raises SelectorError."""
        if self._allowance.left < 0:
            raise SelectorRefused(
                f"gpuledger does not evaluate {_shortened(self.text)!r} any more: "
                f"it takes more than {MOST_STEPS_OF_ALL} steps for all devices together"
            )
        run = Run(seen, MOST_STEPS)
        try:
            result = self._step(run)
        except CelError as error:
            raise SelectorError(f"{_shortened(self.text)!r} can't be evaluated: {error}") from None
        except Unsupported as error:
            raise SelectorRefused(f"gpuledger does not evaluate {_shortened(self.text)!r}: {error}") from None
        finally:
            taken = MOST_STEPS - run.left
            if taken > ORDINARY_STEPS:
                self._allowance.left -= min(taken, MOST_STEPS)
        if not isinstance(result, bool):
            raise SelectorError(f"{_shortened(self.text)!r} is neither true nor false for this device")
        return result


def compile_selector(text: str, where: str) -> Selector:
    """Compile an expression; `where` begins each refusal, such as `ResourceClaim default/a: request gpu, selector 1`.

    Raises BadInput: with line and column, for what CEL, Kubernetes or gpuledger does not take.
    """
    problem, selector = _compiled_selector(text)
    if selector is None:
        raise BadInput(f"{where}: {problem}")
    return selector


@lru_cache(maxsize=_KEPT_EXPRESSIONS)
def _compiled_selector(text: str) -> tuple[str, Selector | None]:
    try:
        checked = check(text, "")
        _check_calls(text, checked)
        return "", Selector(text, compiled(checked), _Allowance(MOST_STEPS_OF_ALL))
    except BadInput as error:
        return str(error).removeprefix(": "), None
    except Unsupported as error:
        return f"gpuledger does not evaluate {error}", None


def _check_calls(text: str, checked: Checked) -> None:
    unknown = unknown_function(checked.root)
    if unknown:
        place = place_of(text, checked, unknown.id)
        raise BadInput(f"{place}: gpuledger does not evaluate {unknown.function}() in selectors")
    for node in walk(checked.root):
        if isinstance(node, Ident) and "." in node.name and text[checked.offsets[node.id] :][:1] != ".":
            # The library takes has(device.driver) for device.driver.
            raise BadInput(f"{place_of(text, checked, node.id)}: every device has {node.name}; ask for what is in it")
        if not isinstance(node, Call) or node.function not in ("matches", "find", "findAll") or len(node.args) < 2:
            continue
        pattern = node.args[1]
        if (
            isinstance(pattern, Const)
            and isinstance(pattern.value, str)
            and (problem := pattern_problem(pattern.value))
        ):
            raise BadInput(f"{place_of(text, checked, pattern.id)}: not a regular expression: {problem}")


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."


def seen_of(device: Mapping[str, object]) -> Mapping[str, object]:
    """Return what expressions see of a device, for many of them. Raises SelectorError if the device can't be read."""
    driver = str(device.get("driver", ""))
    attributes = _by_domain(device.get("attributes"), driver, _attribute)
    capacity = _by_domain(device.get("capacity"), driver, _amount)
    shared = device.get("allowMultipleAllocations") is True
    return {DRIVER: driver, ATTRIBUTES: attributes, CAPACITY: capacity, SHARED: shared}


def _by_domain(found: object, driver: str, read: Callable[[str, object], object]) -> DomainMap:
    domains = DomainMap()
    for name, value in (found if isinstance(found, Mapping) else {}).items():
        domain, slash, short = str(name).partition("/")
        if not slash:
            domain, short = driver, domain
        domains.setdefault(domain, {})[short] = read(str(name), value)
    return domains


def _attribute(name: str, found: object) -> object:
    value = found if isinstance(found, Mapping) else {}
    number, truth, text, version = (value.get(kind) for kind in ("int", "bool", "string", "version"))
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    if isinstance(truth, bool):
        return truth
    if isinstance(text, str):
        return text
    parsed = parse_version(version) if isinstance(version, str) else None
    if parsed is None:
        raise SelectorError(f"attribute {name} of the device has no value that can be read")
    return parsed


def _amount(name: str, found: object) -> object:
    try:
        quantity = parse_quantity(str(found.get("value"))) if isinstance(found, Mapping) else None
    except TooLong:
        quantity = None
    if quantity is None:
        raise SelectorError(f"capacity {name} of the device has no value that can be read")
    return quantity


@dataclass(frozen=True, slots=True)
class SelectorTest:
    """A selector as a condition on cards (`CardTest` of gpuledger.model.card_filter). Equal if the expression is."""

    selector: Selector
    device_of: Callable[[Card], Mapping[str, object]] = field(compare=False, repr=False)
    """Card -> the device that selectors see; it changes only if the card does."""
    _answers: dict[Card, bool | str] = field(default_factory=dict, compare=False, repr=False)
    """Card -> whether it is meant, or why that can't be told; of the cards that were asked for last."""

    @property
    def text(self) -> str:
        """The expression."""
        return self.selector.text

    def admits(self, card: Card) -> bool:
        """Tell whether the card is meant. One for which the expression fails is not."""
        return self._answer(card) is True

    def problem(self, card: Card) -> str:
        """Return why it can't be told whether the card is meant, nothing if it can."""
        answer = self._answer(card)
        return answer if isinstance(answer, str) else ""

    def _answer(self, card: Card) -> bool | str:
        found = self._answers.get(card)
        if found is None:
            if len(self._answers) >= _KEPT_DEVICES:
                self._answers.pop(next(iter(self._answers)))
            try:
                found = self.selector.matches(self.device_of(card))
            except SelectorError as error:
                found = str(error)
            self._answers[card] = found
        return found
