"""The environment says the same as the options of `gpuledger run`."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuledger.command_line.program import main
from gpuledger.configuration.settings import Settings
from gpuledger.controller import kopf_frame
from gpuledger.controller.startup import RunOptions, options_from
from gpuledger.model.errors import BadInput


def test_without_a_word_the_host_is_this_one_and_the_account_the_pods() -> None:
    assert options_from({}) == RunOptions(settings=Settings(), host_name=socket.gethostname())


ENVIRONMENTS: list[dict[str, str]] = [
    {},
    {"GPULEDGER_LEADER_ELECT": "false"},
    {"GPULEDGER_LEADER_ELECT": "0", "GPULEDGER_HOST": "host-a"},
    {"GPULEDGER_LEADER_ELECT": "True", "GPULEDGER_HOST": "host-a", "GPULEDGER_SCHEDULER_CONFIG": "/config/pipe"},
    {"GPULEDGER_SETTINGS": "settings.yaml", "KUBECONFIG": "kubeconfig"},
]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_the_command_reads_the_same_from_the_same_environment(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings.yaml").write_text("hold_ttl_s: 7\n")
    Path("kubeconfig").write_text("{}")
    for name in ("GPULEDGER_SETTINGS", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    ran: list[RunOptions] = []

    async def run(options: RunOptions) -> None:
        ran.append(options)

    monkeypatch.setattr(kopf_frame, "run", run)
    done = CliRunner().invoke(main, ["run"], env=environment)
    assert done.exit_code == 0, done.output
    assert ran == [options_from(environment)]


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"GPULEDGER_LEADER_ELECT": "perhaps"}, "GPULEDGER_LEADER_ELECT: must be true or false"),
        ({"GPULEDGER_SETTINGS": "/nowhere.yaml"}, "/nowhere.yaml: .*No such file"),
    ],
)
def test_what_cannot_be_read_is_said(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"^{sentence}"):
        options_from(environment)
