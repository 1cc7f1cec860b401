"""A kubectl of the tests."""

from pathlib import Path

import pytest

from fakes.allocations import a_list, two_nodes
from fakes.kubectl import FakeKubectl
from gpuledger.command_line.output import ALLOCATIONS


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """Put a stand-in on the PATH that knows the cards of `two_nodes`."""
    fake = FakeKubectl(tmp_path)
    fake.tell({ALLOCATIONS: a_list(*two_nodes())})
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "kubeconfig").touch()  # a cluster is named; the stand-in does not look
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    for name in ("GPULEDGER_URL", "GPULEDGER_TOKEN", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return fake
