"""How the documents are written: each page once in the index, each fact in one place, short sentences."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from documents.pages import FENCE, PAGES, ROOT, WITH_COMMANDS, links
from gpuledger.configuration.settings import Settings

INDEX = ROOT / "docs" / "index.md"
READ = [page for page in WITH_COMMANDS if page.parent in (ROOT, ROOT / "docs")]
"""Pages that users and platform teams read; not the generated reference, nor the decisions."""

ON_A_CARD = ROOT / "docs" / "isolation.md"
"""The one place for what has run on real GPUs. Others link to its section."""

CARD_TALK = re.compile(r"\bH100s?\b|\breal (?:GPUs?|cards?)\b|\brun on hardware\b")
BLOCK = re.compile(r"\n\s*\n|^(?=[ \t]*(?:[-*]|\d+\.)[ \t])|^#.*$|^(?=\|)", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<=[.!?:;])\**\)?\s+(?=[A-Z`*\[(]|(?:containerd|etcd|gpuledger|kube\S+)\s)")

MOST_WORDS = 48
LONG: dict[str, int] = {}
"""How many longer sentences a page still has. Lower the number with each that is gone; nothing is added."""

TRANSLATED = re.compile(
    r"^(?:- |\d+\. )?(?:Who|Whoever|Whose|Whom|What)\b(?!.*\?)"
    r"|\b(?:is|are|was|were) told\b|\bof (?:which|those that|whom)\b|\b(?:say|says) (?:nothing|so)\b"
)
"""Clauses as subjects, and others that native writers avoid. A question may begin with `Who` and `What`."""

WORDS: dict[str, int] = {}
"""How many of these a page still has, as above."""


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def blocks(document: Path) -> Iterator[str]:
    """Yield each paragraph, list item and row of a table, without headings and fenced blocks."""
    for block in BLOCK.split(FENCE.sub("\n\n", document.read_text())):
        if block.strip():
            yield " ".join(block.split())


def sentences(document: Path) -> Iterator[str]:
    """Yield the sentences of what is no table, with links as their texts."""
    for block in blocks(document):
        if not block.startswith("|"):
            yield from SENTENCE_END.split(re.sub(r"\]\([^)]*\)", "]", block))


def test_the_index_has_each_page_once() -> None:
    listed = [(INDEX.parent / target.partition("#")[0]).resolve() for target in links(INDEX)]
    assert [name(file) for file, times in Counter(listed).items() if times > 1] == []
    assert set(PAGES) - set(listed) == {INDEX}


def test_the_index_has_its_four_parts() -> None:
    parts = re.findall(r"^## (.+)$", INDEX.read_text(), re.MULTILINE)
    assert parts == ["For users", "For platform teams", "Reference", "Why and how"]


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=name)
def test_what_has_run_on_real_gpus_is_said_in_one_place(document: Path) -> None:
    if document != ON_A_CARD:
        assert [each for each in blocks(document) if CARD_TALK.search(each) and "#seen-on-a-card" not in each] == []


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=name)
def test_a_row_is_in_a_table(document: Path) -> None:
    """A table begins with a heading row and a line of dashes; a row behind an empty line is shown as text."""
    lines = FENCE.sub("", document.read_text()).splitlines()
    firsts = [at for at, line in enumerate(lines) if line.startswith("|") and not lines[at - 1].startswith("|")]
    assert [lines[at] for at in firsts if not re.fullmatch(r"[|:\- ]+", lines[at + 1])] == []


def stated_defaults(text: str) -> Iterator[tuple[str, str]]:
    """Yield each setting that a text gives a value for, and the value.

    The forms: `setting` (8889); 10,000 records (`setting`); `setting` ... its default, `value`.
    """
    known = "|".join(option.name for option in fields(Settings))
    yield from re.findall(rf"`({known})` \((\d[\d,.]*)\)", text)
    yield from ((found[1], found[0]) for found in re.findall(rf"\b(\d[\d,.]*)(?: \w+){{1,3}} \(`({known})`\)", text))
    yield from re.findall(rf"`({known})`[^`.]*\bdefault,? `([^`]+)`", text)
    yield from re.findall(rf"`({known})` is `([^`]+)` by default", text)


def test_defaults_in_prose_are_the_programs() -> None:
    defaults = {option.name: option.default for option in fields(Settings)}
    found = [(name(document), *each) for document in WITH_COMMANDS for each in stated_defaults(document.read_text())]
    assert len(found) >= 5
    assert [each for each in found if not is_default(defaults[each[1]], each[2])] == []


def is_default(default: object, stated: str) -> bool:
    """Return whether a text states a default; numbers may have commas."""
    if isinstance(default, int | float):
        return float(stated.replace(",", "")) == default
    return str(default) == stated


def test_the_defaults_of_the_production_page_are_the_charts() -> None:
    values = yaml.safe_load((ROOT / "manifests" / "chart" / "values.yaml").read_text())
    program = {option.name: option.default for option in fields(Settings)}
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", (ROOT / "docs" / "production.md").read_text(), re.MULTILINE)
    assert len(rows) >= 3
    for path, stated in rows:
        part, _, key = path.partition(".")
        default = values[part].get(key, program.get(key)) if key else values[part]
        assert (list(default) if isinstance(default, tuple) else default) == yaml.safe_load(stated), path


def exceptions(found: dict[str, list[str]], allowed: dict[str, int]) -> dict[str, list[str]]:
    """Return pages that have more or fewer of these sentences than they are allowed."""
    return {page: each for page, each in found.items() if len(each) != allowed.get(page, 0)}


def test_no_more_long_sentences() -> None:
    found = {name(page): [each for each in sentences(page) if len(each.split()) > MOST_WORDS] for page in READ}
    assert exceptions(found, LONG) == {}


def test_no_more_translated_clauses() -> None:
    found = {name(page): [each for each in sentences(page) if TRANSLATED.search(each)] for page in READ}
    assert exceptions(found, WORDS) == {}


def test_pages_that_have_exceptions_exist() -> None:
    assert set(LONG) | set(WORDS) <= {name(page) for page in READ}
