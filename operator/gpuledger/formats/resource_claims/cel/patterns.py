"""Regular expressions in CEL: RE2's, whose work grows with the text and never with its powers.

Source: the CEL specification (`matches`), and k8s.io/apiserver (pkg/cel/library/regex.go) for `find` and `findAll`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpuledger.formats.resource_claims.cel.values import CelError, Unsupported, no_overload

_MOST_MEMORY_BYTES = 256 * 1024
"""What RE2 may use for one pattern. It also limits how long a search may take per character."""

_TOO_LARGE = "pattern too large"


class _Broken:
    """A pattern that is none."""

    def __init__(self, problem: str, *, too_large: bool) -> None:
        self.problem, self.too_large = problem, too_large


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    import re2  # as late as the CEL library: most runs meet no selector

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY_BYTES
    if "\\C" in pattern:
        return _Broken("\\C", too_large=True)
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        text = error.args[0] if error.args else ""
        text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        return _Broken(text[:200], too_large=_TOO_LARGE in text)


def pattern_problem(pattern: str) -> str:
    """Return what is wrong with a pattern, nothing if it can be used."""
    found = _compiled(pattern)
    return found.problem if isinstance(found, _Broken) else ""


def _pattern(pattern: str) -> Any:
    found = _compiled(pattern)
    if isinstance(found, _Broken):
        if found.too_large:
            raise Unsupported(f"a regular expression that gpuledger does not evaluate: {found.problem}")
        raise CelError(f"not a regular expression: {found.problem}")
    return found


def _texts(name: str, text: object, pattern: object) -> tuple[str, str]:
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise no_overload(name, text, pattern)
    return text, pattern


def search_cost(text: object, pattern: object, *, all_of_them: bool) -> int:
    """Return about how many steps of an evaluation a search may cost. Texts that are none cost nothing."""
    if not isinstance(text, str) or not isinstance(pattern, str):
        return 0
    found = _compiled(pattern)
    per_character = 1 if isinstance(found, _Broken) else int(found.programsize)
    searches = len(text) + 1 if all_of_them else 1
    return len(pattern) // 8 + (len(text) * per_character * searches >> 8)


def matches(text: object, pattern: object) -> bool:
    """Tell whether a part of the text matches."""
    found, wanted = _texts("matches", text, pattern)
    return _pattern(wanted).search(found) is not None


def find_first(text: object, pattern: object) -> str:
    """Return the first match, an empty text if there is none."""
    found, wanted = _texts("find", text, pattern)
    match = _pattern(wanted).search(found)
    return str(match.group()) if match else ""


def find_all(text: object, pattern: object, limit: object = -1) -> list[object]:
    """Return all matches that do not overlap, or the first of them."""
    found, wanted = _texts("findAll", text, pattern)
    if type(limit) is not int:
        raise no_overload("findAll", text, pattern, limit)
    compiled, place, end = _pattern(wanted), 0, -1
    matched: list[object] = []
    while place <= len(found) and (limit < 0 or len(matched) < limit):
        match = compiled.search(found, place)
        if not match:
            break
        start, stop = match.span()
        if stop > start or start != end:  # an empty match right after another one does not count
            matched.append(found[start:stop])
        end = stop
        place = stop if stop > start else stop + 1
    return matched
