"""The file with the secret that operator and kube-scheduler share."""

import os
import secrets
from pathlib import Path

import pytest

from gpuledger.controller.extender_server import extender_secret
from gpuledger.model.errors import BadInput


def test_a_secret_is_made_once_for_this_account_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    first = extender_secret(path)
    assert extender_secret(path) == first
    assert (len(first), path.stat().st_mode & 0o777) == (43, 0o600)
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    assert extender_secret(path) != first


def test_two_that_make_one_at_once_have_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, theirs = tmp_path / "secret", "x" * 40
    link = Path.hardlink_to

    def later(self: Path, target: Path) -> None:
        path.write_text(theirs)
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", later)
    assert extender_secret(path) == theirs


def test_without_a_file_there_is_none() -> None:
    assert extender_secret(None) == ""


@pytest.mark.parametrize("content", ["", "short", "x" * 40 + "@host", "x" * 129, "a b" * 20])
def test_what_could_not_stand_in_a_url_is_refused_with_what_to_do(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    with pytest.raises(BadInput, match=rf"--extender-secret: {path} .* delete it"):
        extender_secret(path)


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> str:
        raise OSError("no entropy")

    monkeypatch.setattr(secrets, "token_urlsafe", fail)
    with pytest.raises(OSError, match="no entropy"):
        extender_secret(tmp_path / "secret")
    assert os.listdir(tmp_path) == []
