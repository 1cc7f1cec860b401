"""CEL selectors of ResourceClaims and DeviceClasses: which devices, and so which cards, a claim may have. Pure.

A device for which the expression fails is not chosen. kube-scheduler goes further: it does not place the pod at all
while a device that it looks at makes it fail. The sentence is kept for whoever asks why a card is not taken.

An expression is compiled, and evaluated for a card, when its answer is wanted and not known. Cards between which it
can't tell have one answer: those of a model, for an expression that speaks of nothing else. Who pays says when it may
go on; till then, a card for which there is no answer is not admitted.

Source: resource.k8s.io/v1 (CELDeviceSelector), and `DeviceMatches` of k8s.io/dynamic-resource-allocation 0.36
(cel/compile.go).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from sys import intern

from gpuledger.formats.quantity import TooLong, parse_quantity
from gpuledger.formats.resource_claims.cel.evaluation import (
    ATTRIBUTES,
    CAPACITY,
    DRIVER,
    SHARED,
    Step,
    check,
    check_cost,
    compiled,
    literal_pattern,
)
from gpuledger.formats.resource_claims.cel.expression import Call, Const, Ident, Node, Select, children, walk
from gpuledger.formats.resource_claims.cel.functions import MEMORY_BYTES, MOST_STEPS, Run
from gpuledger.formats.resource_claims.cel.values import CelError, DomainMap, Unsupported, parse_version
from gpuledger.model.card import ATTRIBUTES as CARD_ATTRIBUTES
from gpuledger.model.card import Card, Payer
from gpuledger.model.errors import BadInput, GpuledgerError

KEPT_BYTES = 32 * 2**20
"""Of all compiled expressions with their answers, as far as they are counted here; those used last are kept."""

_NODE_BYTES, _ANSWER_BYTES, _TEXT_BYTES = 600, 400, 4
"""What is counted: for a node of an expression, an answer that is kept, a character of its text."""

DEVICE_STEPS = 60
"""What it costs to make a device of a card, beside the evaluation."""

View = Callable[[Card], object]


class SelectorError(GpuledgerError):
    """An expression that fails for a device. `str()` says why."""

    steps = 0
    """What the evaluation has taken."""


class SelectorRefused(SelectorError):  # noqa: N818
    """An expression that gpuledger does not evaluate for a device, and Kubernetes would."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled expression. Two with the same text are the same."""

    text: str
    view: View = field(compare=False, repr=False)
    """Card -> what the expression can see of it."""
    kept_bytes: int = field(compare=False, repr=False)
    _step: Step = field(compare=False, repr=False)
    answers: dict[object, bool | str] = field(default_factory=dict, compare=False, repr=False)
    """View -> whether its cards are meant, or why that can't be told."""

    def run(self, device: Mapping[str, object]) -> tuple[bool, int]:
        """Return whether a device is meant, and the steps that this took.

        A device is one of a ResourceSlice's `spec.devices`, with its `driver` beside. Raises SelectorError if the
        expression fails for it, or it can't be read; the error has the steps.
        """
        run = Run(seen_of(device), MOST_STEPS)
        try:
            result = self._step(run)
            if isinstance(result, bool):
                return result, MOST_STEPS - run.left
            failed = SelectorError(f"{_quoted(self.text)} is neither true nor false for this device")
        except CelError as error:
            failed = SelectorError(f"{_quoted(self.text)} can't be evaluated: {error}")
        except Unsupported as error:
            failed = SelectorRefused(f"gpuledger does not evaluate {_quoted(self.text)}: {error}")
        failed.steps = min(MOST_STEPS - run.left, MOST_STEPS)
        raise failed


class KeptSelectors:
    """Compiled expressions with their answers, of which the sum of bytes is limited."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        # Text -> the selector, or why there is none; the one used last is the last.
        self._found: OrderedDict[str, Selector | str] = OrderedDict()
        self._last: tuple[str, Selector | str] | None = None
        """What was asked for last: a search asks for one text, card after card."""

    def get(self, text: str) -> Selector | str | None:
        """Return what is known of a text: its selector, or why it is none; None if it is not compiled."""
        last = self._last
        if last is not None and last[0] is text:
            return last[1]
        found = self._found.get(text)
        if found is not None:
            with suppress(KeyError):  # another thread may just have dropped it
                self._found.move_to_end(text)
            self._last = text, found
        return found

    def compile(self, text: str) -> Selector | str:
        """Compile a text, whatever is known of it."""
        self._drop(text)
        self._found[text] = found = _selector(text)
        self.bytes += _bytes(text, found)
        self._shrink()
        return found

    def answer(self, selector: Selector, view: object, answer: bool | str) -> None:
        """Keep an answer."""
        if self._found.get(selector.text) is selector and view not in selector.answers:
            selector.answers[view] = intern(answer) if isinstance(answer, str) else answer
            self.bytes += _ANSWER_BYTES
            self._shrink()

    def _shrink(self) -> None:
        while self.bytes > self.most_bytes and len(self._found) > 1:
            self._drop(next(iter(self._found)))
        if self.bytes > self.most_bytes:  # answers of the last one
            for selector in self._found.values():
                if isinstance(selector, Selector):
                    self.bytes -= _ANSWER_BYTES * len(selector.answers)
                    selector.answers.clear()

    def _drop(self, text: str) -> None:
        self._last = None
        found = self._found.pop(text, None)
        self.bytes -= 0 if found is None else _bytes(text, found)


def _bytes(text: str, found: Selector | str) -> int:
    own = 1_000 + _TEXT_BYTES * len(text)
    return own + (found.kept_bytes + _ANSWER_BYTES * len(found.answers) if isinstance(found, Selector) else len(found))


KEPT = KeptSelectors()


def _selector(text: str) -> Selector | str:
    try:
        checked = check(text)
        nodes = walk(checked.root)
        patterns = sum(literal_pattern(node) is not None for node in nodes)
        kept_bytes = _NODE_BYTES * len(nodes) + MEMORY_BYTES * patterns
        return Selector(text, _view_of(checked.root), kept_bytes, compiled(text, checked))
    except BadInput as error:
        return str(error)
    except Unsupported as error:
        return f"gpuledger does not evaluate {error}"


_KEY_AT = {"_[_]": 1, "_[?_]": 1, "_?._": 1, "@in": 0}
"""Operator that looks into a map -> which of its two operands is the key."""


def _view_of(root: Node) -> View:
    """Return a function from a card to what the expression can see of it, which can be the key of a map.

    A cluster has tens of thousands of cards and few models, and most selectors speak of a model or of memory.
    """
    found = set(_seen(root))
    names = CARD_ATTRIBUTES if None in found else [name for name in CARD_ATTRIBUTES if name in found]
    reads = [CARD_ATTRIBUTES[name] for name in names]
    if len(reads) == 1:
        (only,) = reads
        return lambda card: (only(card), card.capacity)
    return lambda card: (*[read(card) for read in reads], card.capacity)


def _seen(node: Node) -> Iterator[str | None]:
    """Yield the qualified names of the attributes that an expression names; None if it may look at any other one."""
    domain, name = _key(node)
    inner, key = _key(domain) if domain is not None else (None, None)
    if inner is not None and _is_attributes(inner):
        yield None if key is None or name is None else f"{key}/{name}"
        return
    if _is_attributes(node):
        yield None
        return
    for each in children(node):
        yield from _seen(each)


def _is_attributes(node: Node) -> bool:
    return isinstance(node, Ident) and node.name == ATTRIBUTES


def _key(node: Node) -> tuple[Node | None, str | None]:
    """Return what a node looks into, and by which literal key, None if that is not a literal; None if it does not."""
    if isinstance(node, Select):
        return node.operand, node.field
    if isinstance(node, Call) and node.function in _KEY_AT:
        at = _KEY_AT[node.function]
        key = node.args[at]
        return node.args[1 - at], key.value if isinstance(key, Const) and isinstance(key.value, str) else None
    return None, None


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:117] + "...")


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
    """A selector as a condition on cards (`CardTest` of gpuledger.model.card).

    Equal if the expression is, and the namespace: each has its own to pay for.
    """

    text: str
    device_of: Callable[[Card], Mapping[str, object]] = field(compare=False, repr=False)
    """Card -> the device that selectors see; it changes only if the card does."""
    namespace: str = ""
    where: str = field(default="", compare=False, repr=False)
    """Begins a sentence about what is wrong with the expression."""
    payer: Payer | None = field(default=None, compare=False, repr=False)
    """None: nobody else waits, so it may cost what it costs."""

    def admits(self, card: Card) -> bool:
        """Return whether the card matches. One for which the expression fails does not, nor one without an answer."""
        return self._answer(card) is True

    def problem(self, card: Card) -> str:
        """Return why it can't be told whether the card is meant, nothing if it can."""
        answer = self._answer(card)
        return answer if isinstance(answer, str) else ""

    def compile(self) -> bool:
        """Compile the expression if it is not; return whether it is now. Raises BadInput if it can't be."""
        found = self._selector()
        if isinstance(found, str):
            raise BadInput(f"{self.where}: {found}")
        return found is not None

    def _selector(self) -> Selector | str | None:
        found = KEPT.get(self.text)
        if found is None and (self.payer is None or self.payer.may_go_on()):
            found = KEPT.compile(self.text)
            if self.payer is not None:
                self.payer.pay(check_cost(self.text))
        return found

    def _answer(self, card: Card) -> bool | str:
        selector = self._selector()
        if not isinstance(selector, Selector):
            return selector or self._waits()
        view = selector.view(card)
        found = selector.answers.get(view)
        if found is not None:
            return found
        if self.payer is not None and not self.payer.may_go_on():
            return self._waits()
        try:
            found, steps = selector.run(self.device_of(card))
        except SelectorError as error:
            found, steps = str(error), error.steps
        if self.payer is not None:
            self.payer.pay(steps + DEVICE_STEPS)
        KEPT.answer(selector, view, found)
        return found

    def _waits(self) -> str:
        return self.payer.why_not() if self.payer is not None else ""
