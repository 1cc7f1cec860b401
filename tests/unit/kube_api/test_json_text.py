"""Texts of JSON that other programs take, and ours could not."""

import asyncio
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.kube_api.answers import DEEPEST, TOKENS_AT_ONCE, read_json, read_json_in_turns


def deep(levels: int, inside: str = "0") -> str:
    return "[" * levels + inside + "]" * levels


def depth_of(value: Any) -> int:
    levels = 0
    while isinstance(value, list):
        value, levels = value[0], levels + 1
    return levels


@pytest.mark.parametrize("levels", [1_025, 4_000])
def test_what_is_too_deep_becomes_null_and_all_beside_it_is_kept(levels: int) -> None:
    found = read_json(f'{{"a": {deep(levels, chr(34) + "]" + chr(34))}, "b": [1, {{"c": "]"}}]}}'.encode())
    assert depth_of(found["a"]) == DEEPEST - 1
    assert found["b"] == [1, {"c": "]"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb'["\ud800", "b"]', ["\ufffd", "b"]),
        (rb'["\udc00x", "b"]', ["\ufffdx", "b"]),
        (rb'["\ud800\ud83d\ude00"]', ["\ufffd\U0001f600"]),
        (rb'["\ud800\n\\ud800\u00e9\ud7ff"]', ["\ufffd\n\\ud800é\ud7ff"]),
        (b'["\xff", "b"]', ["\ufffd", "b"]),
    ],
)
def test_what_is_no_character_is_replaced(text: bytes, expected: list[str]) -> None:
    assert read_json(text) == expected


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a": ', b'{"a": "b', b'{"a": "\\', b"]]]]", b'{"a": \\ud800}', b'["\\ud8"]', b'["\\ud8zz"]']
)
def test_what_is_no_json_is_not_read(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        read_json(text)


async def test_what_takes_long_to_read_lets_others_have_their_turn() -> None:
    """Thousands of brackets in each of 32 configurations of a claim, and a page of a list has many claims."""
    text = f"[{','.join([deep(1_500)] * 20)}]".encode()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    assert await read_json_in_turns(text) == read_json(text)
    waiting.cancel()
    assert turns >= 20 * 3_000 // TOKENS_AT_ONCE
    assert await read_json_in_turns(b'{"a": "\\ud800"}') == {"a": "\ufffd"}
    with pytest.raises(orjson.JSONDecodeError):
        await read_json_in_turns(b"{")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_beside_what_can_not_be_read_everything_is_as_it_was(value: Any, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert read_json(text) == value
    odd = b'{"value": ' + text + b', "half": "\\ud800", "deep": ' + deep(1_100).encode() + b"}"
    assert read_json(odd)["value"] == value
