"""Files for the runtime: whole or not there, written once, removed by nobody but for their own pod."""

import errno
import os
import resource
import signal
import threading
from pathlib import Path

import orjson
import pytest

from fakes.grants import a_grant
from gpuledger.agent.grants.files import GrantFiles, write_whole
from gpuledger.formats.runtime.cdi import Grant, grant_file, read_grant

FILE = "gpuledger.dev-share-slot-1-0a1b.json"


@pytest.fixture
def files(tmp_path: Path) -> GrantFiles:
    found = GrantFiles(tmp_path)
    found.load()
    return found


def test_a_grant_is_a_file_that_a_later_agent_reads(files: GrantFiles, tmp_path: Path) -> None:
    files.write(a_grant())
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    later = GrantFiles(tmp_path)
    later.load()
    assert list(later.all()) == list(files.all()) == [a_grant()]


def test_the_directory_is_made_where_no_runtime_has_made_it(tmp_path: Path) -> None:
    files = GrantFiles(tmp_path / "run" / "cdi")
    files.load()
    files.write(a_grant())
    assert (tmp_path / "run" / "cdi" / FILE).is_file()


def test_a_reader_never_sees_half_a_file(files: GrantFiles, tmp_path: Path) -> None:
    """As a runtime does it: whatever is called *.json is read at any moment."""
    over, broken = threading.Event(), []

    def read() -> None:
        while not over.is_set():
            for path in tmp_path.glob("*.json"):
                try:
                    read_grant(path.read_bytes())
                except Exception as error:  # noqa: BLE001 - told by the test
                    broken.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        files.write(a_grant(edits={"env": [f"A={number}", "B=" + "x" * 50_000]}))
    over.set()
    reader.join()
    assert broken == []


def test_nothing_is_written_twice(files: GrantFiles, tmp_path: Path) -> None:
    files.write(a_grant())
    before = (tmp_path / FILE).stat()
    files.write(a_grant())
    later = GrantFiles(tmp_path)
    later.load()
    later.write(a_grant())
    after = (tmp_path / FILE).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_a_file_that_somebody_damaged_is_written_anew(files: GrantFiles, tmp_path: Path, damage: str) -> None:
    files.write(a_grant())
    if damage == "removed":
        (tmp_path / FILE).unlink()
    else:
        (tmp_path / FILE).write_text("{}")
    files.write(a_grant())
    assert read_grant((tmp_path / FILE).read_bytes()) == a_grant()


def test_what_a_power_loss_has_left_half_written_is_whole_before_its_container_starts_again(tmp_path: Path) -> None:
    """A file that was renamed before its content was on the disk is empty afterwards."""
    (tmp_path / FILE).write_bytes(b"")
    later = GrantFiles(tmp_path)
    later.load()
    later.write(a_grant())
    assert read_grant((tmp_path / FILE).read_bytes()) == a_grant()


def test_a_grant_that_changed_is_written_anew(files: GrantFiles, tmp_path: Path) -> None:
    files.write(a_grant())
    files.write(a_grant(uuids=("GPU-2",)))
    assert read_grant((tmp_path / FILE).read_bytes()).uuids == ("GPU-2",)
    assert [grant.uuids for grant in files.all()] == [("GPU-2",)]


def test_grants_go_with_their_pod_and_no_others(files: GrantFiles, tmp_path: Path) -> None:
    mine, other = a_grant(), a_grant("slot-2-ffff", pod="b")
    files.write(mine)
    files.write(other)
    assert files.remove(lambda grant: grant.pod_uid == "uid-a") == [mine]
    assert list(files.all()) == [other]
    assert [path.name for path in tmp_path.iterdir()] == [other.file_name]
    assert files.remove(lambda grant: grant.pod_uid == "uid-a") == []


def test_a_file_that_has_come_to_another_pod_stays(files: GrantFiles, tmp_path: Path) -> None:
    files.write(a_grant())
    (tmp_path / FILE).write_bytes(grant_file(a_grant(pod="b")))
    files.remove(lambda _: True)
    assert (tmp_path / FILE).is_file()
    assert list(files.all()) == []


def test_a_file_that_is_gone_already_is_no_error(files: GrantFiles, tmp_path: Path) -> None:
    files.write(a_grant())
    (tmp_path / FILE).unlink()
    assert files.remove(lambda _: True) == [a_grant()]


def test_what_a_crash_left_unfinished_is_removed(tmp_path: Path) -> None:
    (tmp_path / "gpuledger.dev-share-slot-1-0a1b.unfinished").write_text('{"half')
    (tmp_path / "other.unfinished").write_text("not ours")
    GrantFiles(tmp_path).load()
    assert [path.name for path in tmp_path.iterdir()] == ["other.unfinished"]


def test_an_agent_starts_where_what_a_crash_left_unfinished_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node's disk may be read-only. Containers that run have what they need, and cards can be told of."""

    def refuse(file: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(file))

    (tmp_path / FILE).write_bytes(grant_file(a_grant()))
    (tmp_path / FILE).with_suffix(".unfinished").write_text("half")
    monkeypatch.setattr(Path, "unlink", refuse)
    files = GrantFiles(tmp_path)
    files.load()
    assert list(files.all()) == [a_grant()]


def test_files_that_are_not_ours_stay_as_they_are(tmp_path: Path) -> None:
    texts = {
        "nvidia.yaml": b"cdiVersion: 0.6.0",
        "nvidia.json": b"{}",
        "gpuledger.dev-share-broken.json": b'{"cdiVersion"',
        "gpuledger.dev-share-empty.json": b"",
        "gpuledger.dev-share-other-name.json": grant_file(a_grant()),
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    (tmp_path / "gpuledger.dev-share-folder.json").mkdir()
    files = GrantFiles(tmp_path)
    files.load()
    assert list(files.all()) == []
    files.remove(lambda _: True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == texts


def test_a_grant_that_could_not_be_written_counts_as_not_given(files: GrantFiles, tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()  # in the way
    with pytest.raises(OSError):  # noqa: PT011 - whichever it is
        files.write(a_grant())
    assert list(files.all()) == []
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_full_disk_leaves_nothing_unfinished_and_keeps_what_was_there(tmp_path: Path) -> None:
    """Who tries again and again would else keep the room that is missing, under names that nobody looks at."""
    (tmp_path / FILE).write_text("as it was")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # the kernel writes ten bytes, and refuses the others
    try:
        with pytest.raises(OSError):  # noqa: PT011 - whichever it is
            write_whole(tmp_path / FILE, b"x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {FILE: "as it was"}


def test_anybody_may_read_the_file(files: GrantFiles, tmp_path: Path) -> None:
    """The runtime may have another user than the agent, and the agent's umask is its image's."""
    old = os.umask(0o077)
    try:
        files.write(a_grant())
    finally:
        os.umask(old)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o644
    assert orjson.loads((tmp_path / FILE).read_bytes())["kind"] == "gpuledger.dev/share"


def test_a_grant_is_kept_for_every_container_of_a_pod(files: GrantFiles) -> None:
    grants: list[Grant] = [a_grant(), a_grant("slot-1-ffff", container="init")]
    for grant in grants:
        files.write(grant)
    assert list(files.all()) == grants
