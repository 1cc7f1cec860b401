"""Selectors: Kubernetes' answers, refusals with a place, bounded work, and the test that a card has to pass."""

import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claim_expressions
from claim_expressions import CARDS, CORNERS, EVERYDAY, NODES, REFUSED, Answered
from gpuledger.formats.resource_claims import selectors
from gpuledger.formats.resource_claims.cel.evaluation import MOST_STEPS
from gpuledger.formats.resource_claims.device import device_of
from gpuledger.formats.resource_claims.selectors import (
    Selector,
    SelectorError,
    SelectorRefused,
    SelectorTest,
    compile_selector,
)
from gpuledger.model.amounts import Amounts
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput

DRIVER = claim_expressions.DRIVER
CARD = Card("GPU-7", "node-a", 3, Amounts(40960, 100, 10), model="NVIDIA A100-SXM4-40GB", numa_node=1)
WHERE = "ResourceClaim default/a, request gpu, selector 1"
LOOSE_TIME_S = 2.0
"""For what takes some hundredths of a second on an idle machine, and would take minutes without a limit."""


def seen(card: Card) -> Mapping[str, object]:
    """Return what selectors see of a card."""
    return {**device_of(card), "driver": DRIVER}


def selector(text: str) -> Selector:
    return compile_selector(text, WHERE)


def answers(text: str) -> dict[str, str]:
    compiled = selector(text)
    found = {}
    for device in (device for devices in NODES.values() for device in devices):
        try:
            found[device["name"]] = str(compiled.matches({**device, "driver": DRIVER})).lower()
        except SelectorRefused:
            found[device["name"]] = "refused"
        except SelectorError:
            found[device["name"]] = "error"
    return found


@pytest.mark.parametrize("asked", [*EVERYDAY, *CORNERS], ids=lambda asked: asked.expression[-60:])
def test_an_expression_is_answered_as_kubernetes_does(asked: Answered) -> None:
    assert answers(asked.expression) == asked.answers


@pytest.mark.parametrize("asked", REFUSED, ids=lambda asked: asked.expression[:40])
def test_what_is_not_evaluated_is_refused_before_any_device_is_asked(asked: Answered) -> None:
    with pytest.raises(BadInput, match=f"^{WHERE}: "):
        selector(asked.expression)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device.driver ==", "1:17: Syntax error"),
        ("true &&\n  nobody == 1", "2:3: undeclared reference to 'nobody'"),
        ("device.capacity['a'].b > 3", r"1:24: found no matching overload for '_>_' applied to '\(kubernetes.Quantity"),
        ("true && device.driver.nosuch('x')", "1:29: undeclared reference to 'nosuch'"),
        ("device.driver", "of type string; it has to be true or false"),
        ("1", "of type int; it has to be true or false"),
        ("device.driver.matches('[')", r"1:23: not a regular expression: missing \]"),
        ("true ||\n duration('1h') > duration('1m')", r"2:\d+: gpuledger does not evaluate duration\(\)"),
        ("true && has(device.allowMultipleAllocations)", "1:12: every device has device.allowMultipleAllocations"),
        ("", "1:1: Syntax error"),
        ("\ud800", "not a text"),
        ("'" + "a" * 10240 + "' == ''", "longer than 10240 bytes"),
        ("(" * 200 + "true" + ")" * 200, "nested deeper than the 32 levels"),
        ("1 == 1 && " * 1000 + "true", "too many parts"),
    ],
)
def test_a_refusal_says_where_and_what(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"^{WHERE}: .*{said}"):
        selector(text)


def test_a_refusal_names_the_place_of_whoever_asked_although_the_result_is_kept() -> None:
    for where in ("first", "second"):
        with pytest.raises(BadInput, match=f"^{where}: 1:1: "):
            compile_selector("nobody", where)


def test_selectors_are_equal_by_their_text() -> None:
    assert selector("true") == selector("true")
    assert selector("true") != selector("!false")
    assert len({selector("true"), selector("true"), selector("!false")}) == 2


@pytest.mark.parametrize(
    "device",
    [
        {"driver": DRIVER, "attributes": {"a": {}}},
        {"driver": DRIVER, "attributes": {"a": {"version": "1"}}},
        {"driver": DRIVER, "attributes": {"a": {"strings": ["x"]}}},
        {"driver": DRIVER, "capacity": {"a": {"value": "many"}}},
        {"driver": DRIVER, "capacity": {"a": None}},
    ],
)
def test_a_device_that_cannot_be_read_is_an_error_whatever_the_expression(device: dict[str, object]) -> None:
    with pytest.raises(SelectorError, match="a of the device has no value that can be read"):
        selector("true").matches(device)


def test_an_error_quotes_the_expression_shortly() -> None:
    text = f"'{'x' * 300}' == device.attributes['a'].b"
    with pytest.raises(SelectorError, match="no such key: b") as failed:
        selector(text).matches({"driver": DRIVER})
    assert len(str(failed.value)) < 200


LONG_LIST = f"[{','.join('1' * 100)}]"


def _doubled(times: int, start: str, asked: str) -> str:
    text = asked.replace("LAST", f"a{times}")
    for number in reversed(range(times)):
        text = f"cel.bind(a{number + 1}, a{number} + a{number}, {text})"
    return f"cel.bind(a0, {start}, {text})"


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG_LIST}.all(a, {LONG_LIST}.all(b, {LONG_LIST}.all(c, a + b + c > 0)))",
        f"{LONG_LIST}.all(a, {LONG_LIST}.all(b, 1 / (a - 1) == 0 || b == 1))",
        "lists.range(10000).all(x, x >= 0)",
        "lists.range(10001).size() > 0",
        "lists.range(9).all(x, " * 8 + "true" + ")" * 8,
        _doubled(14, f"'{'x' * 200}'", "LAST.size() > 0"),
        _doubled(14, "['x']", "LAST.map(y, LAST).size() > 0"),
        _doubled(10, "['x']", "LAST == LAST && LAST.all(y, LAST == LAST)"),
        _doubled(8, f"'{'x' * 200}'", "LAST.replace('x', LAST).size() > 0"),
        _doubled(8, f"'{'x' * 200}'", "LAST.matches('(x|xx|xxx){300}y')"),
        f"'{'x' * 9000}'.findAll('x*?').size() > 0",
        f"{LONG_LIST}.map(a, {LONG_LIST}).flatten().distinct().size() > 0",
        f"sets.contains({LONG_LIST} + {LONG_LIST}, {LONG_LIST})",
        _doubled(12, "[1]", "LAST.sort().size() > 0"),
    ],
    ids=lambda text: text[-50:],
)
def test_an_expression_that_would_take_long_is_given_up(text: str) -> None:
    begin_s = time.perf_counter()
    with pytest.raises(SelectorRefused, match=rf"more than {MOST_STEPS} (steps|numbers)"):
        selector(text).matches({"driver": DRIVER})
    assert time.perf_counter() - begin_s < LOOSE_TIME_S


def outcomes(text: str, devices: int) -> list[str]:
    """Return what is said when an expression is evaluated for many devices, one after the other."""
    compiled, found = selector(text), []
    for _ in range(devices):
        try:
            compiled.matches({"driver": DRIVER})
            found.append("")
        except SelectorRefused as refused:
            found.append(str(refused))
    return found


def test_an_expression_that_is_expensive_for_each_device_is_not_evaluated_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selectors, "MOST_STEPS_OF_ALL", 20 * MOST_STEPS)
    told = outcomes(f"{LONG_LIST}.all(one, lists.range(5).all(two, one + two < 10))", 100)
    assert told[0] == ""
    assert 20 <= told.count("") < 100
    assert told[-1].endswith("steps for all devices together")


def test_an_ordinary_expression_is_evaluated_however_many_devices_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "MOST_STEPS_OF_ALL", 0)
    own = claim_expressions.A
    compiled = selector(f"{own}.all(name, name.size() < 20 && [1, 2].exists(other, other == 2))")
    assert all(compiled.matches({**device, "driver": DRIVER}) for device in CARDS for _ in range(10))


@pytest.mark.parametrize("sum_of", ["add(1)", "sub(quantity('1'))"])
def test_a_sum_that_kubernetes_would_write_into_the_device_itself_is_refused(sum_of: str) -> None:
    device = {"driver": DRIVER, "capacity": {"memory": {"value": "1.5Gi"}}}
    compiled = selector(f"{claim_expressions.C}.memory.{sum_of}.isGreaterThan(quantity('1'))")
    with pytest.raises(SelectorRefused, match="to a quantity with a fraction"):
        compiled.matches(device)


@pytest.mark.parametrize(
    "text", ["quantity('1e999999999') == quantity('1')", "quantity('" + "1" * 500 + "').isInteger()"]
)
def test_numbers_without_end_are_refused(text: str) -> None:
    with pytest.raises(SelectorRefused, match="more than 400 digits"):
        selector(text).matches({"driver": DRIVER})


def test_an_error_that_is_a_refusal_is_not_overlooked_by_a_choice() -> None:
    with pytest.raises(SelectorRefused):
        selector(f"{_doubled(14, '[1]', 'LAST.sort().size() > 0')} || true").matches({"driver": DRIVER})


@given(st.text(max_size=80))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        compiled = selector(text)
    except BadInput:
        return
    with suppress(SelectorError):
        compiled.matches({"driver": DRIVER})


WORDS = (
    *("device", ".driver", ".attributes", ".capacity", "['a']", ".b", "[0]", "(", ")", "[", "]", "{", "}", "'x'", "1"),
    *("2u", "1.5", "+", "==", "<", "&&", "||", "!", "-", "?", ":", ",", ".all(x,", ".map(x,", "x", ".exists(x,"),
    *(".size()", "quantity('1')", "semver('1.0.0')", ".isLessThan(", ".compareTo(", "cel.bind(x,", "optional.of("),
    *(".orValue(", ".?b", ".matches('a')", ".split('')", " in ", "dyn(", "type(", "string(", "int(", "true", "null"),
    *("has(", "b'x'", ".sum()"),
)


@given(st.lists(st.sampled_from(WORDS), max_size=14).map("".join))
def test_any_words_of_the_language_are_compiled_or_refused(text: str) -> None:
    try:
        compiled = selector(text)
    except BadInput:
        return
    with suppress(SelectorError):
        compiled.matches({"driver": DRIVER, "attributes": {"a/b": {"int": 1}}, "capacity": {"a/b": {"value": "1"}}})


def test_a_card_passes_the_test_if_its_device_is_meant() -> None:
    own = claim_expressions.A
    meant = SelectorTest(selector(f"{own}.numaNode == 1 && {own}.model.contains('A100')"), seen)
    assert meant.admits(CARD)
    assert not meant.admits(replace(CARD, numa_node=0))
    assert meant.problem(CARD) == ""
    assert meant.text == meant.selector.text


def test_a_card_for_which_the_expression_fails_is_not_admitted_and_it_can_be_told_why() -> None:
    test = SelectorTest(selector(f"{claim_expressions.A}.numaNode == 1"), seen)
    card = replace(CARD, numa_node=None)
    assert not test.admits(card)
    assert "no such key: numaNode" in test.problem(card)


def test_a_card_is_asked_once_and_again_when_it_has_changed() -> None:
    asked = []

    def noted(card: Card) -> Mapping[str, object]:
        asked.append(card)
        return seen(card)

    test = SelectorTest(selector(f"{claim_expressions.C}.memory == quantity('40Gi')"), noted)
    assert [test.admits(CARD) for _ in range(3)] == [True] * 3
    assert asked == [CARD]
    smaller = replace(CARD, capacity=Amounts(1024, 100, 10))
    assert not test.admits(smaller)
    assert asked == [CARD, smaller]


def test_tests_are_equal_by_their_text() -> None:
    one, two = (SelectorTest(selector("true"), seen) for _ in range(2))
    one.admits(CARD)
    assert one == two
    assert hash(one) == hash(two)
    assert one != SelectorTest(selector("false"), seen)


def test_the_library_is_loaded_with_the_first_selector_only() -> None:
    program = """
import sys
from gpuledger.formats.resource_claims.selectors import compile_selector
assert not {"cel_expr_python", "re2"} & set(sys.modules)
assert compile_selector("true", "here").matches({"driver": "a"})
assert "cel_expr_python" in sys.modules and "re2" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
