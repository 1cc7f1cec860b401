"""The objects of a List while it is still being sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

Json = dict[str, Any]


def list_items(pieces: Iterable[bytes], begin: bytes) -> Iterator[Json]:
    """Yield the items of a List that comes in pieces, each of which begins with the same bytes.

    A comma before these bytes can't be inside a text: JSON escapes their quotation marks. A List that looks different,
    as from another API server, is read as a whole. Raises ValueError if it is no List at all.
    """
    text, started = b"", False  # from the first item on: what was not yielded, without the bytes that it begins with
    for piece in pieces:
        text += piece
        if not started:
            _, found, rest = text.partition(b'"items":[' + begin)
            if not found:
                continue
            text, started = rest, True
        *whole, text = text.split(b"," + begin)
        for item in whole:
            yield orjson.loads(begin + item)
    if started:
        text = b'{"items":[' + begin + text  # the last one, and the end of the List
    yield from orjson.loads(text).get("items") or []
