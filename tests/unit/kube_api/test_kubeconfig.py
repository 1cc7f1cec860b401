"""Kubeconfig files that we read ourselves: what counts in several, and what is said of those that can't be used."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio.client import Configuration

from gpuledger.kube_api.kubeconfig import load, namespace_of, persons_files
from gpuledger.model.errors import BadInput

Json = dict[str, Any]


def a_config(name: str, user: Json, current: str = "") -> Json:
    return {
        "current-context": current or name,
        "clusters": [{"name": name, "cluster": {"server": f"http://{name}"}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"of-{name}"}}],
    }


@pytest.fixture
def two(tmp_path: Path) -> str:
    """Return two files, and one between them that is not there."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(yaml.safe_dump(a_config(name, {"token": f"token-of-{name}"})))
    return ":".join(str(tmp_path / name) for name in ("one", "missing", "two"))


@pytest.mark.parametrize(("context", "found"), [(None, "one"), ("two", "two")])
async def test_of_several_files_the_first_ones_context_counts_unless_another_is_named(
    two: str, context: str | None, found: str
) -> None:
    configuration = Configuration()
    await load(configuration, two, context)
    assert configuration.host == f"http://{found}"
    assert configuration.api_key["BearerToken"] == f"Bearer token-of-{found}"
    assert namespace_of(two, context) == f"of-{found}"


async def test_a_program_that_logs_in_is_asked_again_once_its_token_is_about_to_end(tmp_path: Path) -> None:
    version, calls = "client.authentication.k8s.io/v1", tmp_path / "calls"
    program, file = tmp_path / "log-in", tmp_path / "config"
    answer = '{"apiVersion": "%s", "kind": "ExecCredential", "status": {"token": "%s", "expirationTimestamp": "%s"}}'
    program.write_text(
        f"#!/bin/sh\nif [ -e {calls} ]; then echo '{answer % (version, 'new', '2099-01-01T00:00:00Z')}'\n"
        f"else touch {calls}; echo '{answer % (version, 'old', '2001-01-01T00:00:00Z')}'; fi\n"
    )
    program.chmod(0o755)
    file.write_text(yaml.safe_dump(a_config("one", {"exec": {"apiVersion": version, "command": str(program)}})))
    configuration = Configuration()
    await load(configuration, str(file), None)
    assert configuration.api_key["BearerToken"] == "Bearer old"
    assert await configuration.get_api_key_with_prefix("BearerToken") == "Bearer new"
    calls.unlink()  # and is not asked while it is good
    assert await configuration.get_api_key_with_prefix("BearerToken") == "Bearer new"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no current-context; --context names one"),
        ("[]", "no current-context; --context names one"),
        ("current-context: [", "no credentials for an API server from kubeconfig"),
        ("current-context: x", "no credentials for an API server from kubeconfig"),
        (yaml.safe_dump({**a_config("one", {}), "users": 7}), "no credentials for an API server from kubeconfig"),
        (yaml.safe_dump(a_config("one", {"exec": {"command": "/nosuch", "apiVersion": "v1"}})), "/nosuch"),
    ],
)
async def test_a_file_that_cannot_be_used_is_said_in_one_line(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    with pytest.raises(BadInput, match=said) as refused:
        await load(Configuration(), str(file), None)
    assert "\n" not in str(refused.value)


async def test_a_file_that_is_not_there_or_a_context_is_said(two: str) -> None:
    with pytest.raises(BadInput, match="/nosuch does not exist"):
        await load(Configuration(), "/nosuch", None)
    with pytest.raises(BadInput, match="nosuch"):
        await load(Configuration(), two, "nosuch")


def test_a_persons_files_are_looked_for_where_kubectl_looks(
    two: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput, match="no cluster is named"):
        persons_files(None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert persons_files(None) is None
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").touch()
    assert persons_files(None) == str(tmp_path / ".kube" / "config")
    monkeypatch.setenv("KUBECONFIG", two)
    assert persons_files(None) == two
    assert persons_files("mine") == "mine"
