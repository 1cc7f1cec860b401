"""The pages of docs/reference/ say what the program has."""

import re
from pathlib import Path

import pytest

import reference_docs
from documents.pages import ROOT
from gpuledger.formats.dialects import selection
from gpuledger.model.errors import EventReason

OURS = re.compile(r"gpuledger\.dev/([a-z][a-z-]*)")
NAMES = ROOT / "docs" / "reference" / "names.md"
NO_NAMES = {"v"}
"""Of an apiVersion."""


@pytest.mark.parametrize("name", reference_docs.PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    page = ROOT / "docs" / "reference" / name
    assert page.read_text() == reference_docs.PAGES[name](), "run: make generate"


def sources() -> list[Path]:
    found = [*(ROOT / "operator").rglob("*.py"), *(ROOT / "manifests").rglob("*.yaml")]
    return [file for file in found if "_generated" not in file.parts]


def test_every_name_under_our_prefix_is_in_the_reference_and_every_one_there_exists() -> None:
    written = {name for file in sources() for name in OURS.findall(file.read_text())} - NO_NAMES
    chosen = {
        name.partition("/")[2]
        for names in (vars(selection)[each] for each in dir(selection) if each.isupper())
        if isinstance(names, tuple)
        for name in names
        if isinstance(name, str) and name.startswith("gpuledger.dev/")
    }
    assert len(written) > 10
    assert len(chosen) > 5
    assert set(OURS.findall(NAMES.read_text())) == written | chosen


def test_every_event_is_in_the_reference() -> None:
    section = NAMES.read_text().partition("## Events")[2]
    assert set(re.findall(r"`([A-Z]\w+)`", section)) == set(EventReason)
