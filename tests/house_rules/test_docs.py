"""What the documents say is what the program does: options, reasons, examples, make targets, links."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import a_ledger
from fakes.objects import DIALECTS
from gpuledger.agent.simulated import fake_nodes
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.request import pod_request
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import Seat
from gpuledger.model.errors import Reason
from gpuledger.model.request import PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy

ROOT = Path(__file__).parents[2]
REASONS = ROOT / "docs" / "seeing.md"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def first_columns(document: Path) -> Iterator[tuple[str, str]]:
    """Yield the first two cells of all table rows whose first cell is one word in backticks."""
    for row in re.findall(r"^\| `([^`]+)` \| ([^|]*) \|", document.read_text(), re.MULTILINE):
        yield row[0], row[1].strip("` ")


def example_pods(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and pod of everything in an example that becomes pods, as often as it does."""
    for document in yaml.safe_load_all(file.read_text()):
        name, spec = document["metadata"]["name"], document["spec"]
        pod = spec.get("template", document)
        for _ in range(spec.get("parallelism", 1)):
            yield name, pod


def request_of(pod: dict[str, Any]) -> PodRequest:
    request = pod_request(pod, DIALECTS)
    assert request is not None
    return request


def in_yaml(default: object) -> str:
    if isinstance(default, tuple):
        return f"[{', '.join(default)}]"
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_every_setting_is_documented_with_its_default() -> None:
    documented = dict(first_columns(ROOT / "docs" / "settings.md"))
    assert documented == {option.name: in_yaml(option.default) for option in fields(Settings)}


def test_every_reason_that_is_given_is_in_the_table_of_reasons() -> None:
    source = "".join(file.read_text() for file in (ROOT / "operator").rglob("*.py"))
    given = {reason.value for reason in Reason if f"Reason.{reason.name}" in source}
    documented = {code for code, _ in first_columns(REASONS) if code in set(Reason)}
    assert documented == given


def test_every_piece_of_a_refusals_text_is_in_the_table_of_reasons() -> None:
    """All strings of placement/fit.py end up in a text that a person reads; docstrings apart."""
    tree = ast.parse((ROOT / "operator" / "gpuledger" / "placement" / "fit.py").read_text())
    comments = {id(statement.value) for statement in ast.walk(tree) if isinstance(statement, ast.Expr)}
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in comments
    }
    table = REASONS.read_text()
    assert len(texts) > 10
    assert [text for text in sorted(texts) if text not in table] == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_asks_for_cards_and_names_the_scheduler(file: Path) -> None:
    for _, pod in example_pods(file):
        assert pod["spec"]["schedulerName"] == Settings().scheduler_name
        assert request_of(pod).cards >= 1


def test_the_examples_fit_on_the_nodes_of_the_demo_in_any_order() -> None:
    pods = [pod for file in EXAMPLES for pod in example_pods(file)]
    orders = [pods, pods[::-1], sorted(pods, key=lambda pod: pod[0])]
    assert [waiting_pods(order) for order in orders] == [["too-large"]] * len(orders)


def waiting_pods(pods: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Place the pods on three nodes with eight cards; return the names of those that find no room."""
    ledger = demo_ledger()
    chooser, nodes, waiting = Chooser(ledger, Policy()), sorted(ledger.node_names()), []
    for position, (name, pod) in enumerate(pods):
        choice = chooser.choose(request_of(pod), nodes, 1)
        for placement in choice.placements:
            ledger.seats.take(Seat(f"{name}-{position}", placement, until_s=1.0))
        if choice.refusals:
            waiting.append(name)
    return waiting


def demo_ledger() -> Ledger:
    nodes = fake_nodes("gpu-node", count=3, gpus=8, model="A100-40GB")
    return a_ledger(*(card for node in nodes for card in node.cards))


def test_the_reason_in_the_waiting_example_is_the_one_that_is_given() -> None:
    file = ROOT / "examples" / "08-waits.yaml"
    ((_, pod),) = example_pods(file)
    refusals = Chooser(demo_ledger(), Policy()).choose(request_of(pod), ["gpu-node-1"], 1).refusals
    assert f'"{refusals["gpu-node-1"].text}"' in file.read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_the_make_targets_of_a_document_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", document.read_text(), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_the_files_that_a_document_links_to_exist(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []
