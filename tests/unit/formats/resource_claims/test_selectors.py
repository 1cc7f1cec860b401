"""Selectors: Kubernetes' answers, refusals with a place, bounded work, and the test that a card has to pass."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claim_expressions
from claim_expressions import CARDS, CORNERS, EVERYDAY, NODES, REFUSED, Answered, compile_selector
from gpuledger.formats.resource_claims import selectors
from gpuledger.formats.resource_claims.cel import evaluation as environment
from gpuledger.formats.resource_claims.cel.functions import MOST_STEPS
from gpuledger.formats.resource_claims.selectors import (
    KeptSelectors,
    Selector,
    SelectorError,
    SelectorRefused,
    SelectorTest,
)
from gpuledger.formats.resource_claims.slices import device_of
from gpuledger.model.card import Amounts, Card
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
            found[device["name"]] = str(compiled.run({**device, "driver": DRIVER})[0]).lower()
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
        selector("true").run(device)


def test_an_error_quotes_the_expression_shortly() -> None:
    text = f"'{'x' * 300}' == device.attributes['a'].b"
    with pytest.raises(SelectorError, match="no such key: b") as failed:
        selector(text).run({"driver": DRIVER})
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
        selector(text).run({"driver": DRIVER})
    assert time.perf_counter() - begin_s < LOOSE_TIME_S


def shared(levels: int, way: str = "exists") -> str:
    """Return a selector of values that have another one twice, for so many levels: small lists, and 2**levels ways."""
    names = [f"v{number}" for number in range(levels)]
    text = f"{names[-1]} == {names[-1]}"
    for number, name in reversed(list(enumerate(names))):
        value = f"[{names[number - 1]}, {names[number - 1]}]" if number else "[1, 1]"
        text = f"[{value}].exists({name}, {text})" if way == "exists" else f"cel.bind({name}, {value}, {text})"
    return text


@pytest.mark.parametrize("levels", [16, 20, 26])
@pytest.mark.parametrize("way", ["exists", "bind"])
def test_a_value_that_shares_its_parts_is_paid_for_before_it_is_walked_through(levels: int, way: str) -> None:
    found = selector(shared(levels, way))
    before, calls = sys.getprofile(), 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        assert calls < 20 * MOST_STEPS

    sys.setprofile(count)
    try:
        with pytest.raises(SelectorRefused, match=f"more than {MOST_STEPS} steps"):
            found.run({"driver": DRIVER})
    finally:
        sys.setprofile(before)


DIGITS = "1" * 9_000


@pytest.mark.parametrize(
    "text",
    [
        f"isQuantity('{DIGITS}!' + device.driver)",
        f"double('{DIGITS}!') > 1.0",
        f"isSemver('1.0.0-{DIGITS}!' + device.driver)",
        "lists.range(1000).all(n, isSemver('1.0.0-" + "1." * 2_000 + "1' + string(n)) || n >= 0)",
        f"cel.bind(v, semver('1.0.0-{'1.' * 4_000}1'), lists.range(400).all(n, !v.isLessThan(v)))",
        f"lists.range(1000).map(n, 'x').join('{'x' * 8_000}').size() > 0",
        f"lists.range(100).exists(n, '{'x' * 5_000}'.matches('(x|xx){{100}}y' + string(n)))",
        "lists.range(100).exists(n, 'a'.matches('\\\\pL' + string(n)))",
        f"[{', '.join(f'{{{n}: 1}}' for n in range(300))}].exists(m, m == m && lists.range(30).all(n, n in m))",
        f"{{{', '.join(f'{n % 400 + 2}: 1' for n in range(1_200))}, 1: 2}}.size() > 0",
        f"lists.range(1000).all(n, b'{'x' * 9_000}' == b'{'x' * 900}' || n >= 0)",
    ],
    ids=lambda text: text[:40],
)
def test_an_evaluation_takes_less_than_ten_milliseconds(text: str) -> None:
    found = selector(text)
    assert min(seconds(found) for _ in range(5)) < MOST_S


MOST_S = 0.010


def seconds(found: Selector) -> float:
    """Return how long an evaluation is on the processor, which other programs do not change much."""
    begin_s = time.thread_time()
    with suppress(SelectorError):
        found.run({**CARDS[0], "driver": DRIVER})
    return time.thread_time() - begin_s


@pytest.mark.parametrize(
    "text",
    [
        "optional.of(1)" + ".optMap(x, x)" * 16 + ".hasValue()",
        "optional.of(1)" + ".optFlatMap(x, optional.of(x))" * 12 + ".hasValue()",
        " || ".join(["[1].exists(x, x == 1)"] * 400),
    ],
    ids=["optMap", "optFlatMap", "macros"],
)
def test_what_the_library_would_make_too_much_of_does_not_reach_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_environment", None)
    with pytest.raises(BadInput, match="too many parts"):
        selector(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device.driver.matches('" + "\\\\pL" * 5 + "')", "more than 4 classes"),
        (" || ".join(f"device.driver.matches('{n}')" for n in range(9)), "more than 8 regular expressions"),
    ],
)
def test_regular_expressions_that_take_long_to_compile_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        selector(text)


@pytest.mark.parametrize("sum_of", ["add(1)", "sub(quantity('1'))"])
def test_a_sum_that_kubernetes_would_write_into_the_device_itself_is_refused(sum_of: str) -> None:
    device = {"driver": DRIVER, "capacity": {"memory": {"value": "1.5Gi"}}}
    compiled = selector(f"{claim_expressions.C}.memory.{sum_of}.isGreaterThan(quantity('1'))")
    with pytest.raises(SelectorRefused, match="to a quantity with a fraction"):
        compiled.run(device)


@pytest.mark.parametrize(
    "text", ["quantity('1e999999999') == quantity('1')", "quantity('" + "1" * 500 + "').isInteger()"]
)
def test_numbers_without_end_are_refused(text: str) -> None:
    with pytest.raises(SelectorRefused, match="more than 400 digits"):
        selector(text).run({"driver": DRIVER})


def test_an_error_that_is_a_refusal_is_not_overlooked_by_a_choice() -> None:
    with pytest.raises(SelectorRefused):
        selector(f"{_doubled(14, '[1]', 'LAST.sort().size() > 0')} || true").run({"driver": DRIVER})


@given(st.text(max_size=80))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        compiled = selector(text)
    except BadInput:
        return
    with suppress(SelectorError):
        compiled.run({"driver": DRIVER})


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
        compiled.run({"driver": DRIVER, "attributes": {"a/b": {"int": 1}}, "capacity": {"a/b": {"value": "1"}}})


def test_a_card_passes_the_test_if_its_device_is_meant() -> None:
    own = claim_expressions.A
    meant = SelectorTest(f"{own}.numaNode == 1 && {own}.model.contains('A100')", seen)
    assert meant.admits(CARD)
    assert not meant.admits(replace(CARD, numa_node=0))
    assert meant.problem(CARD) == ""


def test_a_card_for_which_the_expression_fails_is_not_admitted_and_it_can_be_told_why() -> None:
    test = SelectorTest(f"{claim_expressions.A}.numaNode == 1", seen)
    card = replace(CARD, numa_node=None)
    assert not test.admits(card)
    assert "no such key: numaNode" in test.problem(card)


def asked_of(text: str, cards: Sequence[Card]) -> list[Card]:
    """Return for which cards a selector is evaluated, if it is asked for all of them, twice."""
    asked = []

    def noted(card: Card) -> Mapping[str, object]:
        asked.append(card)
        return seen(card)

    selectors.KEPT.compile(text)
    test = SelectorTest(text, noted)
    answers = [test.admits(card) for card in (*cards, *cards)]
    assert answers == [selector(text).run(seen(card))[0] for card in (*cards, *cards)]
    return asked


OWN, OWN_AMOUNTS = claim_expressions.A, claim_expressions.C
MANY = [
    replace(CARD, uuid=f"GPU-{number}", index=number % 8, model=f"model {number % 3}", numa_node=number % 2)
    for number in range(600)
]


@pytest.mark.parametrize(
    ("text", "evaluations"),
    [
        (f"{OWN}.model == 'model 1'", 3),
        (f"{OWN}['model'].contains('1') && {OWN_AMOUNTS}.memory.isGreaterThan(quantity('1Gi'))", 3),
        (f"has({OWN}.numaNode) && 'model' in {OWN} && {OWN}.?model.orValue('') != ''", 6),
        (f"{OWN}[?'numaNode'].orValue(0) == 1", 2),
        ("device.driver == 'other'", 1),
        (f"{OWN}.uuid.endsWith('7')", 600),
        (f"{OWN}.exists(name, name == 'uuid')", 600),
        (f"cel.bind(own, {OWN}, own.model == 'model 1')", 600),
        (f"device.attributes[device.driver].model == '{OWN}'", 600),
    ],
)
def test_cards_that_look_the_same_to_a_selector_have_one_answer(text: str, evaluations: int) -> None:
    assert len(asked_of(text, MANY)) == evaluations


def test_a_card_is_asked_again_when_it_has_changed() -> None:
    smaller = replace(CARD, capacity=Amounts(1024, 100, 10))
    text = f"{OWN_AMOUNTS}.memory == quantity('40Gi')"
    assert asked_of(text, [CARD, smaller]) == [CARD, smaller]


def test_what_is_kept_of_selectors_has_a_limit_in_bytes() -> None:
    kept = KeptSelectors(most_bytes=1_000_000)

    def compiled(number: int) -> Selector:
        found = kept.compile(f"{OWN}.index != {number} && '{'x' * 2_000}' != ''")
        assert isinstance(found, Selector)
        return found

    for number in range(300):
        found = compiled(number)
        for view in range(number):
            kept.answer(found, view, True)
        assert kept.bytes <= kept.most_bytes
    assert kept.get(found.text) is found
    assert kept.get(f"{OWN}.index != 0 && '{'x' * 2_000}' != ''") is None
    for view in range(10_000):
        kept.answer(found, view, True)
        assert kept.bytes <= kept.most_bytes


class Payer:
    """Pays for one evaluation, and then for nothing."""

    paid = skipped = 0
    is_spent = False

    def may_go_on(self) -> bool:
        self.skipped += self.paid > 0
        return not self.paid

    def pay(self, steps: int) -> None:
        self.paid += steps

    def why_not(self) -> str:
        return "waits for its turn"


def test_a_card_for_which_nobody_may_pay_now_is_not_admitted_and_says_so() -> None:
    text, payer = f"{OWN}.uuid.startsWith('GPU')", Payer()
    selectors.KEPT.compile(text)
    test = SelectorTest(text, seen, "a", payer=payer)
    assert [test.admits(card) for card in MANY[:3]] == [True, False, False]
    assert payer.skipped == 2
    assert (test.problem(MANY[0]), test.problem(MANY[1])) == ("", "waits for its turn")
    payer.paid = 0
    assert test.admits(MANY[1])


def test_a_selector_that_is_not_compiled_yet_waits_for_its_payer_too() -> None:
    payer = Payer()
    test = SelectorTest(f"{OWN}.uuid != 'not compiled yet'", seen, "a", payer=payer)
    payer.paid = 1
    assert not test.compile()
    assert not test.admits(CARD)
    payer.paid = 0
    assert test.compile()
    assert payer.paid > 1_000


def test_tests_are_equal_by_their_text() -> None:
    one, two = SelectorTest("true", seen, where="here"), SelectorTest("true", seen, where="there")
    one.admits(CARD)
    assert one == two
    assert hash(one) == hash(two)
    assert one != SelectorTest("false", seen)
    assert one != SelectorTest("true", seen, "another namespace, which pays for itself")


def test_the_library_is_loaded_with_the_first_selector_only() -> None:
    program = """
import sys
from gpuledger.formats.resource_claims.selectors import KEPT
assert not {"cel_expr_python", "re2"} & set(sys.modules)
assert KEPT.compile("true").run({"driver": "a"})[0]
assert "cel_expr_python" in sys.modules and "re2" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
