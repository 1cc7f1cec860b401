"""What in the chart and its document comes from elsewhere is what is there. No Helm is needed for that."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart import CHART, CLOSED, DOCUMENT, ELSEWHERE, NOT_MEANT, SCHEMA, chart_files, closed_levels
from chart_values import Value, documented, table

VALUES_TEXT = (CHART / "values.yaml").read_text()
VALUES = list(documented(VALUES_TEXT))


def sections(values: dict[str, Any], above: tuple[str, ...] = ()) -> set[str]:
    """Return the paths of all values, down to those that are documented."""
    known = {each.path for each in VALUES}
    found: set[str] = set()
    for key, value in values.items():
        path = (*above, key)
        name = ".".join(path)
        found |= sections(value, path) if isinstance(value, dict) and name not in known else {name}
    return found


@pytest.mark.thorough
def test_the_generated_files_of_the_chart_are_what_the_code_gives() -> None:
    for path, text in chart_files().items():
        assert path.read_text() == text, f"{path.name}: run `make generate` and commit it"


def test_every_value_has_a_comment() -> None:
    assert sections(yaml.safe_load(VALUES_TEXT)) == {each.path for each in VALUES}
    assert [each.path for each in VALUES if len(each.comment) < 12 or not each.comment.endswith(".")] == []


def test_the_document_ends_in_the_table_of_all_values() -> None:
    assert DOCUMENT.read_text().endswith("\n## Values\n\n" + table(VALUES_TEXT))


def test_every_value_is_in_the_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    for value in VALUES:
        part = schema
        for key in value.path.split("."):
            assert part[CLOSED] is True
            part = part["properties"][key]


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the schema of each object that is in no list."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from objects(part, f"{path}.{name}")


def test_the_schema_leaves_wrong_keys_to_the_templates_which_name_the_right_ones() -> None:
    every = dict(objects(json.loads(SCHEMA.read_text())))
    assert [path for path, each in every.items() if each.get(CLOSED, False) is not ("properties" in each)] == []
    refused = [path for path, each in every.items() if each.get("additionalProperties") is False]
    assert refused == [".files", ".scheduler.versions"]


def test_other_charts_values_lead_to_values_of_ours() -> None:
    levels = dict(closed_levels(json.loads(SCHEMA.read_text())))
    ours = {f"{level}.{name}".removeprefix(".") for level, names in levels.items() for name in names}
    assert set(ELSEWHERE.values()) <= ours
    assert ELSEWHERE.keys() & ours == set()
    assert {path.rpartition(".")[0] for path in ELSEWHERE} <= levels.keys()
    assert {path.rpartition(".")[2].lower() for path in ours} >= NOT_MEANT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# The file.\n\n# One.\na: 1\n", [Value("a", 1, "One.")]),
        (
            "a:\n  # Two\n  # lines.\n  b: x\n  # Three.\n  c: {d: 1}\n",
            [Value("a.b", "x", "Two lines."), Value("a.c", {"d": 1}, "Three.")],
        ),
        (
            "# A map.\na:\n  b: 1\n  c: 2\n# Next.\nd: 0\n",
            [Value("a", {"b": 1, "c": 2}, "A map."), Value("d", 0, "Next.")],
        ),
    ],
)
def test_comments_are_read_with_their_values(text: str, expected: list[Value]) -> None:
    assert list(documented(text)) == expected
