"""What `gpuledger audit` prints and how it ends: whole UUIDs, stable fields, exit codes that a cron job can rely on."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuledger.command_line import options
from gpuledger.command_line.commands.audit import as_json, as_lines
from gpuledger.command_line.options import ended_by_errors
from gpuledger.command_line.program import main
from gpuledger.ledger.audit import AuditFinding, AuditFindingKind, Judge
from gpuledger.model.errors import Unreachable
from gpuledger.model.share import Pod
from gpuledger.reports.tables import Terminal
from gpuledger.workflows.repair import Report

POD = Pod("uid-a", "default", "a")
LONG_UUID = "GPU-" + "0123456789abcdef." * 14 + "end"
GONE = AuditFinding(AuditFindingKind.POD_GONE, "node-a", LONG_UUID, POD, "1000 MiB, 0 % cores, 1 slot", Judge("uid-a"))
TWIN = AuditFinding(AuditFindingKind.TWO_NODES, "node-a", "GPU-1", None, "nodes node-a and node-b report it")
NOTHING = Report((), ())


def test_the_fields_for_scripts() -> None:
    assert as_json(Report((GONE,), (TWIN,))) == [
        {
            "kind": "pod-gone",
            "node": "node-a",
            "card": LONG_UUID,
            "pod": "default/a",
            "detail": "1000 MiB, 0 % cores, 1 slot",
            "remedy": AuditFindingKind.POD_GONE.remedy,
            "mended": True,
        },
        {
            "kind": "two-nodes",
            "node": "node-a",
            "card": "GPU-1",
            "pod": "",
            "detail": "nodes node-a and node-b report it",
            "remedy": AuditFindingKind.TWO_NODES.remedy,
            "mended": False,
        },
    ]
    assert as_json(NOTHING) == []


def test_a_table_for_another_program_has_whole_lines_and_no_colours() -> None:
    lines = list(as_lines(Report((), (GONE, TWIN)), Terminal()))
    (row,) = (line for line in lines if LONG_UUID in line)
    assert row.split() == ["node-a", LONG_UUID, "default/a", "1000", "MiB,", "0", "%", "cores,", "1", "slot"]
    assert f"pod-gone: {AuditFindingKind.POD_GONE.remedy}" in lines
    assert lines[-1] == "2 found: 2 left."
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)


def test_a_table_on_a_terminal_has_colours_and_whole_uuids() -> None:
    uuid = "GPU-6872d826-680e-51ee-9808-86b7b9bf495f"
    report = Report((AuditFinding(AuditFindingKind.POD_GONE, "node-a", uuid, POD, "x" * 300),), (TWIN,))
    lines = list(as_lines(report, Terminal(width=120, colours=True)))
    assert "\x1b[1mpod-gone\x1b[0m: " in lines[0]
    assert any(uuid in line for line in lines)
    shown = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert max(len(line) for line in shown[1:]) <= 120
    assert sum(line.count("x") for line in shown if "xxx" in line) == 300


def test_nothing_found_is_said() -> None:
    assert list(as_lines(NOTHING, Terminal())) == ["Ledger, pods and nodes agree."]


def test_what_was_mended_is_shown_beside_what_is_left() -> None:
    table = list(as_lines(Report((GONE,), (TWIN,)), Terminal()))
    rows = [line.split() for line in table if line.strip().startswith("node-a")]
    assert [row[-1] for row in rows] == ["yes", "no"]
    assert table[-1] == "2 found: 1 fixed, 1 left."


def test_what_an_annotation_says_is_no_markup_moves_no_cursor_and_begins_no_line() -> None:
    hostile = "one\ntwo [bold]\x1b[31mred\x1b[2J \x9b1m[/]"
    table = as_lines(Report((), (AuditFinding(AuditFindingKind.NOT_ADOPTABLE, detail=hostile),)), Terminal())
    assert [line for line in table if "red" in line] == ["  one two [bold] [31mred [2J  1m[/]"]


def run(monkeypatch: pytest.MonkeyPatch, outcome: Report | Exception, *arguments: str) -> tuple[int, str]:
    """Run the command over an audit with this outcome; return exit code and output."""

    def in_cluster(*_: object) -> Report:
        with ended_by_errors():
            if isinstance(outcome, Exception):
                raise outcome
        return outcome

    monkeypatch.setattr(options, "in_cluster", in_cluster)
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
    assert "no cluster is named" in result.output
