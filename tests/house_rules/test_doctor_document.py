"""Every kind of finding of the doctor is documented, in the words of the program, and seen by a test."""

import re
from pathlib import Path

from gpuledger.doctor.examination import CHECKS
from gpuledger.doctor.kinds import FindingKind

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "doctor.md").read_text()


def test_the_document_has_every_finding_in_the_words_of_the_program() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (error|warning) \| (.+) \| (.+) \|$", DOCUMENT, re.MULTILINE)
    assert rows == [(kind.value, kind.severity.value, kind.meaning, in_a_table(kind.remedy)) for kind in FindingKind]


def test_the_document_says_how_many_checks_there_are() -> None:
    assert f"{len(CHECKS)} checks, nothing found." in DOCUMENT


def test_every_finding_is_found_in_a_test() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests" / "unit" / "doctor").glob("test_*.py"))
    assert [kind for kind in FindingKind if f'"{kind.value}"' not in tests and f"Kind.{kind.name}" not in tests] == []


def in_a_table(text: str) -> str:
    return text.replace("|", r"\|")
