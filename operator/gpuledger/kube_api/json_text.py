"""What the API server sends, read, whatever users have put into it.

Most fields are written by the API server itself. A raw extension, such as the parameters in a ResourceClaim, goes to
every reader as its user has sent it: thousands of brackets deep, with half a surrogate pair, or with bytes that are no
UTF-8. That is JSON to Go. If it were none to us, one claim would keep the whole list of claims from being read.
Seen with Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

DEEPEST = 200
"""Brackets around a value that is kept where not everything can be: no field of Kubernetes' own comes near."""

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)
_HEX = rb"[0-9a-fA-F]{2}"
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]" + _HEX + rb"(?:\\u[dD][c-fC-F]" + _HEX + rb")?|u[dD][c-fC-F]" + _HEX + rb"|.)", re.DOTALL
)
_HALF_LENGTH = len(r"\ud83d")


def read_json(text: bytes) -> Any:
    """Return what a text says.

    In one that can't be read as it is, what is too deep becomes null, and characters that are none become U+FFFD.
    Raises orjson.JSONDecodeError for what is no JSON even then.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(b"".join(_readable(text.decode(errors="replace").encode())))


def _readable(text: bytes) -> Iterator[bytes]:
    """Yield the parts of a text, of which none is too deep."""
    depth = kept = 0
    for token in _TOKEN.finditer(text):
        found = token[0]
        if found in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                yield text[kept : token.start()] + b"null"
        elif found in b"]}":
            depth -= 1
            if depth == DEEPEST:
                kept = token.end()
        elif depth <= DEEPEST and b"\\" in found:
            yield text[kept : token.start()] + _ESCAPE.sub(_character, found)
            kept = token.end()
    yield text[kept:]


def _character(escape: re.Match[bytes]) -> bytes:
    """Return an escape, or U+FFFD for half a surrogate pair."""
    return rb"\ufffd" if len(escape[0]) == _HALF_LENGTH else escape[0]
