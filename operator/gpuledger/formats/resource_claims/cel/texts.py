"""CEL's functions of texts.

Source: cel-go 0.26, ext/strings.go version 2. It counts in characters. `indexOf` and `lastIndexOf` are for lists, too.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.formats.resource_claims.cel.operators import Function
from gpuledger.formats.resource_claims.cel.patterns import find_all, find_first, matches
from gpuledger.formats.resource_claims.cel.values import CelError, same, take

_SPACE = "".join(
    map(chr, (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
)
"""What Go's strings.TrimSpace takes away, which is not quite what Python's strip() does."""


def _char_at(text: object, place: object) -> str:
    (found,), (at,) = take("charAt", str, text), take("charAt", int, place)
    if not 0 <= at <= len(found):
        raise CelError(f"index out of range: {at}")
    return found[at : at + 1]


def _index_of(where: object, what: object, offset: object = 0) -> int:
    if isinstance(where, list):
        return next((at for at, each in enumerate(where) if same(each, what)), -1)
    (text, part), (start,) = take("indexOf", str, where, what), take("indexOf", int, offset)
    if not part:
        return start
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return text.find(part, start) if start < len(text) else -1


def _last_index_of(where: object, what: object, offset: object = None) -> int:
    if isinstance(where, list):
        return next((at for at in range(len(where) - 1, -1, -1) if same(where[at], what)), -1)
    text, part = take("lastIndexOf", str, where, what)
    if offset is None:
        return len(text) if not part else text.rfind(part)
    (start,) = take("lastIndexOf", int, offset)
    if not part:
        return start
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return -1 if start >= len(text) else text.rfind(part, 0, start + len(part))


def _lower(text: object) -> str:
    (found,) = take("lowerAscii", str, text)
    return found.translate({code: code + 32 for code in range(65, 91)})


def _upper(text: object) -> str:
    (found,) = take("upperAscii", str, text)
    return found.translate({code: code - 32 for code in range(97, 123)})


def _replace(text: object, old: object, new: object, limit: object = -1) -> str:
    (found, part, other), (count,) = take("replace", str, text, old, new), take("replace", int, limit)
    return found.replace(part, other, max(count, -1))


def _split(text: object, separator: object, limit: object = -1) -> list[object]:
    (found, part), (count,) = take("split", str, text, separator), take("split", int, limit)
    if count == 0:
        return []
    if not part:
        pieces = list(found)
        return [*pieces[: count - 1], "".join(pieces[count - 1 :])] if 0 < count < len(pieces) else [*pieces]
    return [*found.split(part, count - 1 if count > 0 else -1)]


def _substring(text: object, start: object, end: object = None) -> str:
    (found,), (first,) = take("substring", str, text), take("substring", int, start)
    (last,) = take("substring", int, len(found) if end is None else end)
    if end is not None and first > last:
        raise CelError(f"invalid substring range. start: {first}, end: {last}")
    if not 0 <= first <= len(found) or not 0 <= last <= len(found):
        raise CelError(f"index out of range: {first}, {last}")
    return found[first:last]


def _trim(text: object) -> str:
    return take("trim", str, text)[0].strip(_SPACE)


def _join(items: object, separator: object = "") -> str:
    (texts,), (between,) = take("join", list, items), take("join", str, separator)
    return between.join(take("join", str, *texts))


def _text_test(name: str, holds: Callable[[str, str], bool]) -> Function:
    return lambda text, part: holds(*take(name, str, text, part))


TEXT_FUNCTIONS: dict[str, Function] = {
    "contains": _text_test("contains", lambda text, part: part in text),
    "startsWith": _text_test("startsWith", str.startswith),
    "endsWith": _text_test("endsWith", str.endswith),
    "matches": matches,
    "find": find_first,
    "findAll": find_all,
    "charAt": _char_at,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "lowerAscii": _lower,
    "upperAscii": _upper,
    "replace": _replace,
    "split": _split,
    "substring": _substring,
    "trim": _trim,
    "join": _join,
}
