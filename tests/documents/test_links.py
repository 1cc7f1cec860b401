"""Links among the documents lead somewhere, on a code host as on the site."""

from pathlib import Path

import pytest

from documents.pages import DOCUMENTS, PAGES, ROOT, anchors, links


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_to_a_heading_of_it(document: Path) -> None:
    broken = []
    for target in links(document):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_page_is_linked_from_the_first_one() -> None:
    """The site's sidebar is made of these links."""
    first = ROOT / "docs" / "index.md"
    linked = {(first.parent / target.partition("#")[0]).resolve() for target in links(first)}
    assert set(PAGES) - linked == {first}


def test_the_anchors_of_headings_are_those_of_code_hosts(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    headings = ("# A `b` C", "## What can't be", "## [Link](x.md): it", "## Twice", "## Twice")
    page.write_text("\n".join([*headings, "```console", "# no heading", "```", ""]))
    assert anchors(page) == {"a-b-c", "what-cant-be", "link-it", "twice", "twice-1"}
