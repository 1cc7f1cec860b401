"""Which API server a person's command talks to, where nobody says."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuledger.command_line.program import main

CONFIG = """
apiVersion: v1
kind: Config
current-context: mine
clusters: [{name: mine, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: mine, context: {cluster: mine, user: me}}]
users: [{name: me, user: {token: secret}}]
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of somebody whose kubectl has a cluster."""
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(CONFIG)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("argv", [["audit"], ["simulate", "--from-cluster"]])
def test_people_reach_the_cluster_that_kubectl_reaches(argv: list[str]) -> None:
    result = CliRunner().invoke(main, argv)
    assert result.exit_code != 0
    assert "127.0.0.1" in result.output


def test_in_a_pod_without_kubectl_the_pods_account_counts_where_there_is_no_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubectl has it: a file comes first."""
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert "127.0.0.1:1" in CliRunner().invoke(main, ["audit"]).output
    (home / ".kube" / "config").unlink()
    assert "from the pod's account" in CliRunner().invoke(main, ["audit"]).output


def test_what_runs_in_pods_never_takes_a_persons_own_file() -> None:
    assert "no kubeconfig, and not in a pod" in CliRunner().invoke(main, ["run"]).output
