"""Each promise of the documents has a test with the real programs, and each test of one names one that exists."""

from documents.pages import ROOT
from promises import PROMISES, find_tests

REAL_PROGRAMS = {"cluster", "node", "browser", "hostile", "manifests"}
"""Directories of tests that `make test` runs only for a promise."""

KNOWN = {name for sentences in PROMISES.values() for name in sentences}


def test_each_promise_has_a_test_and_each_test_names_a_promise() -> None:
    assert set(find_tests()) == KNOWN


def test_the_documents_of_promises_exist() -> None:
    assert [document for document in PROMISES if not (ROOT / document).exists()] == []


def test_promises_are_checked_with_real_programs() -> None:
    files = {each.file for tests in find_tests().values() for each in tests}
    assert {file.partition("/")[0] for file in files} <= REAL_PROGRAMS
