"""How Sphinx makes the site of the documents: `make docs`. It reads them where they are, as a code host shows them."""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "operator" / "gpuledger" / "__init__.py").read_text())

project = "gpuledger"
author = "the gpuledger authors"
copyright = author  # noqa: A001 - Sphinx's word
version = release = VERSION.group(1) if VERSION else ""

# The repository is the source directory, so that links to README.md and among documents work here as they do there.
extensions = ["myst_parser"]
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**.md"]
exclude_patterns = [".*", "build", "dist", "tests"]  # large folders that need not be searched
root_doc = "docs/index"
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"gpuledger {release}"
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False
html_additional_pages = {"index": "to_docs.html"}
templates_path = ["templates"]


def add_sidebar(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Give the site the order of the first page: each of its headings with the documents that are linked below it."""
    if docname != root_doc:
        return
    for heading, links in re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", source[0], re.MULTILINE | re.DOTALL):
        documents = "\n".join(path for path in re.findall(r"^- \[[^]]+\]\(([^)#]+)\.md\)", links, re.MULTILINE))
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{documents}\n```\n"


def unlink_folders(app: Sphinx, document: nodes.document) -> None:
    """Turn links to folders into their text: the site has only documents, and copies of single files."""
    here = (ROOT / app.env.docname).parent
    for link in list(document.findall(nodes.Element)):
        path = str(link.get("reftarget", link.get("refuri", ""))).split("#")[0]
        if path and ":" not in path and (here / path).is_dir():
            link.replace_self(link.children)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add what the documents need and Sphinx does not know."""
    app.add_lexer("mermaid", TextLexer)  # a code host draws it; here it is read
    app.connect("source-read", add_sidebar)
    app.connect("doctree-read", unlink_folders)
    return {"parallel_read_safe": True}
