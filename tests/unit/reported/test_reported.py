"""What the five reports write is understood, or warned of: their manifests, ConfigMaps, registers and annotations.

Each file in `cases/` is one report: HAMi's FAQ and its page on topology, Volcano's vGPU guide, and the reports of a
card that was given twice and of 200 nodes brought down by handshakes. A case has

- `objects`: Nodes, Pods, ConfigMaps as the report has them, without what does not matter here;
- `settings`: those that a reader of the report would set;
- `read`: "Kind name" -> what `gpuledger inspect -o json` has to show of it. Dictionaries may show more, lists may not;
- `says`: "Kind name" -> a part of each of its notes, warnings and problems, in any order. One more, or one less, fails;
- `placed`: pod -> the node and cards that `gpuledger simulate` gives it, or the reason why it waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpuledger.command_line.program import main

Json = dict[str, Any]

SAID = ("notes", "warnings", "problems", "notSupported")
REPORTS = sorted((Path(__file__).parent / "cases").glob("*.yaml"))


def cases(report: Path) -> Iterator[Any]:
    for case in yaml.safe_load(report.read_text()):
        yield pytest.param(case, id=f"{report.stem}: {case['name']}")


ALL = [case for report in REPORTS for case in cases(report)]


@pytest.fixture
def files(tmp_path: Path) -> Any:
    """Return how a case becomes the arguments of a command."""

    def written(case: Json) -> list[str]:
        settings, objects = tmp_path / "settings.yaml", tmp_path / "objects.yaml"
        settings.write_text(yaml.safe_dump(case.get("settings") or {}))
        objects.write_text(yaml.safe_dump_all(case["objects"]))
        return ["--settings", str(settings), "-f", str(objects), "-o", "json"]

    return written


def run(*arguments: str) -> Json:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    return dict(json.loads(result.stdout))


def shows(wanted: Any, found: Any, where: str) -> None:
    """Check that a part of a JSON document is there."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict), where
        for key, value in wanted.items():
            assert key in found, f"{where}: no {key} in {found}"
            shows(value, found[key], f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(wanted) == len(found), f"{where}: {found}"
        for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
            shows(one, other, f"{where}[{number}]")
    else:
        assert found == wanted, where


def inspected(arguments: list[str]) -> list[Json]:
    """Return what `inspect` shows of each object: of one alone it prints no list."""
    found = run("inspect", *arguments)
    return list(found["items"]) if found["kind"] == "List" else [found]


@pytest.mark.parametrize("case", [case for case in ALL if "read" in case.values[0]])
def test_what_the_report_writes_is_read(case: Json, files: Any) -> None:
    found = {f"{item['kind']} {item['name']}": item for item in inspected(files(case))}
    for name, wanted in case["read"].items():
        shows(wanted, found[name], name)


@pytest.mark.parametrize("case", [case for case in ALL if "read" in case.values[0]])
def test_all_that_is_not_as_written_is_said_and_nothing_else(case: Json, files: Any) -> None:
    for item in inspected(files(case)):
        said = [sentence for key in SAID for sentence in item.get(key) or ()]
        parts = (case.get("says") or {}).get(f"{item['kind']} {item['name']}", [])
        assert len(said) == len(parts), said
        for part in parts:
            assert any(part in sentence for sentence in said), said


@pytest.mark.parametrize("case", [case for case in ALL if "placed" in case.values[0]])
def test_its_pods_get_the_cards_that_the_report_wants(case: Json, files: Any) -> None:
    pods = {pod["pod"].rpartition("/")[2]: pod for pod in run("simulate", *files(case))["pods"]}
    for name, wanted in case["placed"].items():
        pod = pods[name]
        if "reason" in wanted:
            assert wanted["reason"] in [reason["reason"] for reason in pod["reasons"]]
            continue
        assert pod["node"] == wanted["node"]
        cards = [card for container in pod["containers"].values() for card in container]
        if "cards" in wanted:
            assert sorted(card["uuid"] for card in cards) == sorted(wanted["cards"])
        assert len({card["uuid"] for card in cards}) == len(cards) == wanted.get("count", len(cards))
        if "memory_mib" in wanted:
            assert {card["memoryMiB"] for card in cards} == {wanted["memory_mib"]}


@pytest.mark.parametrize("case", [case for case in ALL if case.values[0].get("no_card_twice")])
def test_no_card_of_the_report_is_given_twice(case: Json, files: Any) -> None:
    pods = run("simulate", *files(case))["pods"]
    assert [pod["status"] for pod in pods if pod["status"] != "placed"] == []
    uuids = [card["uuid"] for pod in pods for container in pod["containers"].values() for card in container]
    assert len(set(uuids)) == len(uuids)
