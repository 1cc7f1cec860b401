"""What `gpuledger audit` prints and how it ends: whole UUIDs, stable fields, exit codes that a cron job can rely on."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuledger.command_line import audit
from gpuledger.command_line.audit import as_json, as_tables
from gpuledger.command_line.program import main
from gpuledger.ledger.findings import Finding, Judge, Kind
from gpuledger.model.errors import Unreachable
from gpuledger.model.share import Pod
from gpuledger.workflows.repair.audit import Report

POD = Pod("uid-a", "default", "a")
LONG_UUID = "GPU-" + "0123456789abcdef." * 14 + "end"
GONE = Finding(Kind.POD_GONE, "node-a", LONG_UUID, POD, "1000 MiB, 0 % cores, 1 slot", Judge("uid-a"))
TWIN = Finding(Kind.TWO_NODES, "node-a", "GPU-1", None, "nodes node-a and node-b report it")
NOTHING = Report((), ())


def test_the_fields_for_scripts() -> None:
    assert json.loads(as_json(Report((GONE,), (TWIN,)))) == [
        {
            "kind": "pod-gone",
            "node": "node-a",
            "card": LONG_UUID,
            "pod": "default/a",
            "detail": "1000 MiB, 0 % cores, 1 slot",
            "remedy": Kind.POD_GONE.remedy,
            "mended": True,
        },
        {
            "kind": "two-nodes",
            "node": "node-a",
            "card": "GPU-1",
            "pod": "",
            "detail": "nodes node-a and node-b report it",
            "remedy": Kind.TWO_NODES.remedy,
            "mended": False,
        },
    ]
    assert json.loads(as_json(NOTHING)) == []


def test_a_table_for_another_program_has_whole_lines_and_no_colours() -> None:
    lines = as_tables(Report((), (GONE, TWIN))).splitlines()
    (row,) = (line for line in lines if LONG_UUID in line)
    assert row.split() == ["node-a", LONG_UUID, "default/a", "1000", "MiB,", "0", "%", "cores,", "1", "slot"]
    assert f"pod-gone: {Kind.POD_GONE.remedy}" in lines
    assert lines[-1] == "2 found: 2 left."
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)


def test_a_table_on_a_terminal_has_colours_and_whole_uuids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    uuid = "GPU-6872d826-680e-51ee-9808-86b7b9bf495f"
    table = as_tables(Report((Finding(Kind.POD_GONE, "node-a", uuid, POD, "x" * 300),), (TWIN,)))
    assert "\x1b[" in table
    assert uuid in table


def test_nothing_found_is_said() -> None:
    assert as_tables(NOTHING) == "Ledger, pods and nodes agree.\n"


def test_what_was_mended_is_shown_beside_what_is_left() -> None:
    table = as_tables(Report((GONE,), (TWIN,)))
    rows = [line.split() for line in table.splitlines() if line.strip().startswith("node-a")]
    assert [row[-1] for row in rows] == ["yes", "no"]
    assert table.endswith("2 found: 1 mended, 1 left.\n")


def test_what_an_annotation_says_is_no_markup() -> None:
    table = as_tables(Report((), (Finding(Kind.NOT_ADOPTABLE, detail="[red]container[/red] [/]"),)))
    assert "[red]container[/red] [/]" in table


def run(monkeypatch: pytest.MonkeyPatch, outcome: Report | Exception, *arguments: str) -> tuple[int, str]:
    """Run the command over an audit with this outcome; return exit code and output."""

    async def run_audit(*_: object) -> Report:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(audit, "run_audit", run_audit)
    result = CliRunner().invoke(main, ["audit", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (NOTHING, 0),
        (Report((GONE,), ()), 0),
        (Report((), (GONE,)), 1),
        (Report((GONE,), (TWIN,)), 1),
        (Unreachable("no answer"), 2),
        (RuntimeError("a defect"), 2),
    ],
)
def test_the_exit_code_says_whether_something_is_left(
    monkeypatch: pytest.MonkeyPatch, outcome: Report | Exception, code: int
) -> None:
    assert run(monkeypatch, outcome)[0] == code
    assert run(monkeypatch, outcome, "-o", "json")[0] == code


def test_an_error_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, Unreachable("no answer"))[1] == "Error: no answer\n"


def test_adopting_is_mending(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, NOTHING, "--adopt")
    assert code == 2
    assert "--adopt enters shares, so it needs --fix" in output


def test_bad_settings_are_an_error_and_no_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("no_such_option: 1")
    assert run(monkeypatch, NOTHING, "--settings", str(file))[0] == 2


def test_without_credentials_the_audit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(main, ["audit"])
    assert result.exit_code == 2
    assert "no credentials for an API server" in result.output
