"""Every command that the documents show is run by a test, or is in a list that says why not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from documents.pages import ROOT, Run, commands, commands_of, mentioned, reasons, run_elsewhere, runs, shown
from fakes.objects import GPU, a_node_object, a_pod_object
from gpuledger.agent.simulated import fake_nodes

TIMEOUT_S = 240
NODES_CSV = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,V100\nn2,64000,262144,4,T4\n"
PODS_CSV = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    "a,4000,8192,1,500,,0,3600\nb,4000,8192,1,1000,,600,4000\nc,8000,16384,2,1000,,900,7200\nd,2000,4096,1,250,,1200,2400\n"
)


def test_every_command_is_run_by_a_test_or_has_a_reason_why_not() -> None:
    known = [run.command for where in ("here", "cluster") for run in runs(where)] + list(reasons())
    assert len(known) == len(set(known))
    where = {text: {command.file for command in found} - run_elsewhere().keys() for text, found in shown().items()}
    unknown = {text: files for text, files in where.items() if files and text not in known}
    assert unknown == {}, "add it to tests/documents/commands.yaml"
    in_text = {text for document in run_elsewhere() for text in mentioned(ROOT / document)}
    assert set(known) - shown().keys() - in_text == set(), "no document shows it any more"


def test_a_document_whose_commands_are_run_elsewhere_has_that_test() -> None:
    for document, test in run_elsewhere().items():
        file, _, name = test.partition("::")
        assert (ROOT / document).exists()
        assert f"def {name}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("document", ["docs/operations.md", "docs/production.md", "docs/runbooks.md"])
def test_what_a_runbook_says_to_run_in_its_text_is_in_a_block_too(document: str) -> None:
    """Only blocks are run."""
    run = [command.text for command in commands_of(ROOT / document)]
    found = {text for text in mentioned(ROOT / document) if not any(text in each for each in run)}
    assert found - reasons().keys() == set()


def test_commands_are_found_in_blocks_with_and_without_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ one\\\n  more\nprinted\n\n$ two\n```\n"
        "- ```bash\n  # a comment\n  three   # why\n  ```\n```text\nno command\n```\n".replace("- ```", "  ```")
    )
    monkeypatch.setattr("documents.pages.WITH_COMMANDS", [page])
    monkeypatch.setattr("documents.pages.ROOT", tmp_path)
    found = [(command.text, command.output) for command in commands()]
    assert found == [("one more", "printed"), ("two", None), ("three", None)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with what the commands name."""
    directory = tmp_path_factory.mktemp("commands")
    for name in ("examples", "manifests"):
        (directory / name).symlink_to(ROOT / name)
    (directory / "tests").mkdir()
    (node,) = fake_nodes("gpu-node", count=1, gpus=8, model="A100-40GB")
    (directory / "nodes.yaml").write_text(yaml.safe_dump(a_node_object(node.name, node.cards)))
    (directory / "pods.yaml").symlink_to(ROOT / "examples" / "01-share.yaml")
    (directory / "deployment.yaml").write_text(yaml.safe_dump(thirty_like(directory / "pods.yaml")))
    (directory / "large.yaml").write_text(yaml.safe_dump(a_pod_object("large", {GPU: "16"})))
    (directory / "nodes.csv").write_text(NODES_CSV)
    for name in ("pods.csv", "pods_default.csv"):
        (directory / name).write_text(PODS_CSV)
    (directory / "gangs.csv").write_text(PODS_CSV + "e,4000,8192,1,1000,,700,4000\n")
    return directory


def thirty_like(pods: Path) -> dict[str, object]:
    """Return a Deployment of 30 pods like the first one of a file."""
    pod = next(yaml.safe_load_all(pods.read_text()))
    spec = {"replicas": 30, "template": {"spec": pod["spec"]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


@pytest.mark.thorough
@pytest.mark.parametrize("run", runs("here"), ids=lambda run: run.command[:60])
def test_a_command_that_needs_no_cluster(run: Run, place: Path) -> None:
    programs = str(Path(sys.executable).parent)
    variables = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", ""),
        "ROOT": str(ROOT),
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("operator", "tests", "tools")),
        "name": "gpuledger-webhook.gpuledger-system.svc",
        "COLUMNS": "240",
    }
    done = subprocess.run(
        ["bash", "-c", run.run_as],
        cwd=place,
        env=variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == run.status, done.stdout + done.stderr
    for command in shown()[run.command]:
        if run.compared and command.output is not None and command.file not in run_elsewhere():
            assert _lines(done.stdout) == _lines(command.output), command.file


def _lines(text: str) -> list[str]:
    """Return the lines without spaces at their ends and without empty ones."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]
