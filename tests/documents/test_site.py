"""`make docs` builds the site without a warning, and its pages ask no other host for anything.

`make check` does not build it: the first time, Sphinx is installed.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from documents.pages import PAGES, ROOT

BUILD_TIMEOUT_S = 240  # the first time, Sphinx is installed
LOADS = {"src", "srcset", "data", "poster", "action", "background", "xlink:href"}
"""Attributes by which a page loads something; `href` does only on some elements."""

FOREIGN = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


@pytest.fixture(scope="module")
def site() -> Path:
    """Build the site; a warning is an error."""
    made = subprocess.run(
        ["make", "docs"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / "build" / "docs"


class Loads(HTMLParser):
    """Collects what a page loads by itself; links that a reader follows are none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "style":
                self.found += loaded_by_style(value or "")
            elif name in LOADS or (name == "href" and tag in ("link", "image", "use", "base")):
                self.found.append(value or "")

    def handle_data(self, data: str) -> None:
        self.found += loaded_by_style(data)


def loaded_by_style(text: str) -> list[str]:
    return [first or second for first, second in IN_STYLES.findall(text)]


def loaded_by_page(text: str) -> list[str]:
    parser = Loads()
    parser.feed(text)
    return parser.found


def files(site: Path, *endings: str) -> Iterator[tuple[str, str]]:
    for file in sorted(site.rglob("*")):
        if file.suffix in endings and "_downloads" not in file.parts:
            yield str(file.relative_to(site)), file.read_text()


@pytest.mark.thorough
def test_pages_load_nothing_from_another_host(site: Path) -> None:
    pages = dict(files(site, ".html"))
    assert len(pages) > len(PAGES)
    assert sum(len(loaded_by_page(text)) for text in pages.values()) > len(pages)
    foreign = {name: [each for each in loaded_by_page(text) if FOREIGN.match(each)] for name, text in pages.items()}
    assert {name: each for name, each in foreign.items() if each} == {}


@pytest.mark.thorough
def test_styles_and_pictures_load_nothing_from_another_host(site: Path) -> None:
    styles = dict(files(site, ".css", ".svg"))
    assert styles
    foreign = {name: [each for each in loaded_by_style(text) if FOREIGN.match(each)] for name, text in styles.items()}
    assert {name: each for name, each in foreign.items() if each} == {}


@pytest.mark.thorough
def test_scripts_name_no_other_host_to_load_from(site: Path) -> None:
    """Addresses in their comments, and names of XML namespaces, are no requests."""
    calls = re.compile(r"(?:fetch|import|open|src\s*=)\s*\(?\s*['\"`](?:https?:)?//", re.IGNORECASE)
    scripts = dict(files(site, ".js"))
    assert scripts
    assert [name for name, text in scripts.items() if calls.search(text)] == []


@pytest.mark.thorough
def test_every_document_has_its_page(site: Path) -> None:
    missing = [page for page in PAGES if not (site / page.relative_to(ROOT)).with_suffix(".html").exists()]
    assert missing == []


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<img src="http://example/x.png">',
        '<style>@import "https://example/x.css"; b { background: url(//example/x.png) }</style>',
        '<p style="background: url(https://example/x.png)">',
    ],
)
def test_what_is_loaded_from_another_host_is_noticed(text: str) -> None:
    assert [each for each in loaded_by_page(text) if FOREIGN.match(each)]


def test_a_link_that_a_reader_follows_is_not_loaded() -> None:
    assert loaded_by_page('<a href="https://example/">there</a>') == []
