"""The API server's answers: JSON, whatever users have put into it, and statuses.

Most fields are written by the API server itself. A raw extension, such as the parameters in a ResourceClaim, goes to
every reader as its user has sent it: thousands of brackets deep, with half a surrogate pair, or with bytes that are no
UTF-8. That is JSON to Go. If it were none to us, one claim would keep the whole list of claims from being read. Seen
with Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from gpuledger.model.errors import ApiError, Conflict, Denied, Invalid, NotFound, Replaced, Unreachable
from gpuledger.model.json_object import at

KINDS: dict[int, type[ApiError]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: Conflict,
    410: Conflict,
    422: Invalid,
}


def kind_of(status: int, answer: object = None) -> type[ApiError]:
    """Return the error that an HTTP status of 300 and more becomes; `answer` is the body, mostly a Status.

    A patch that names the UID of an object that is gone is refused as one that would change the UID of its successor.
    """
    if status == 422 and any(_is_about_uid(cause) for cause in at(answer, ("details", "causes")) or ()):
        return Replaced
    return KINDS.get(status, Unreachable if status in (408, 429) or status >= 500 else ApiError)


def message_of(answer: Any) -> str:
    """Return the message of a Status; of a refused eviction also the budget's name and numbers, which a cause has.

    Raises KeyError and TypeError for what is no Status.
    """
    message = str(answer["message"])
    if answer.get("code") != 429:
        return message
    causes = (str(at(cause, ("message",)) or "") for cause in at(answer, ("details", "causes")) or ())
    return " ".join([message, *filter(None, causes)])


def asked_wait_s(retry_after: str | None, longest_s: float) -> float:
    """Return for how many seconds a header `Retry-After` asks to be left alone, `longest_s` at most; 0: it does not."""
    return min(longest_s, float(retry_after)) if retry_after and retry_after.isdigit() else 0.0


def _is_about_uid(cause: object) -> bool:
    return bool(at(cause, ("field",)) == "metadata.uid")


DEEPEST = 200
"""Brackets around a value that is kept where not everything can be: no field of Kubernetes' own comes near."""

TOKENS_AT_ONCE = 2_000
"""Of a text that can't be read as it is, before others have their turn: a millisecond or two. One claim has 150,000."""

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)

_HEX = rb"[0-9a-fA-F]{2}"

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]" + _HEX + rb"(?:\\u[dD][c-fC-F]" + _HEX + rb")?|u[dD][c-fC-F]" + _HEX + rb"|.)", re.DOTALL
)

_HALF_LENGTH = len(r"\ud83d")


def read_json(text: bytes) -> Any:
    """Return the parsed JSON.

    In a text that can't be read as it is, values that are too deep become null, and invalid characters become U+FFFD.
    Raises orjson.JSONDecodeError for a text that is no JSON even then.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(b"".join(_readable(text)))


async def read_json_in_turns(text: bytes) -> Any:
    """Return the same, and let others have their turn where that takes long: its user has seen to it."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        import asyncio  # here: commands that ask for one thing read JSON, too, and start without it

        parts: list[bytes] = []
        for number, part in enumerate(_readable(text)):
            parts.append(part)
            if number % TOKENS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return orjson.loads(b"".join(parts))


def _readable(text: bytes) -> Iterator[bytes]:
    """Yield the parts of a text, of which none is too deep: after each token what can be kept by then."""
    text = text.decode(errors="replace").encode()
    depth = kept = 0
    for token in _TOKEN.finditer(text):
        found = token[0]
        part = b""
        if found in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                part = text[kept : token.start()] + b"null"
        elif found in b"]}":
            depth -= 1
            if depth == DEEPEST:
                kept = token.end()
        elif depth <= DEEPEST and b"\\" in found:
            part = text[kept : token.start()] + _ESCAPE.sub(_character, found)
            kept = token.end()
        yield part
    yield text[kept:]


def _character(escape: re.Match[bytes]) -> bytes:
    """Return an escape, or U+FFFD for half a surrogate pair."""
    return rb"\ufffd" if len(escape[0]) == _HALF_LENGTH else escape[0]
