"""Where there is no CDI, a container reads its cards in a directory that only it has."""

import errno
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from fakes.grants import a_grant
from gpuledger.agent.grants.files import GrantFiles
from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.agent.isolation.hami_core import own_directory, remove_own_directory
from gpuledger.formats.runtime.cdi import grant_file

CARDS = [GrantedCard("GPU-1", 1, "nvidia", "", 4_000, 30, False)]


def loaded(root: Path) -> GrantFiles:
    """Return what an agent that starts finds."""
    found = GrantFiles(root / "cdi", root / "shares", with_cdi=False)
    found.load()
    return found


@pytest.fixture
def shares(tmp_path: Path) -> Path:
    """Return the directory with those of all containers."""
    return tmp_path / "shares"


@pytest.fixture
def directories(tmp_path: Path) -> GrantFiles:
    return loaded(tmp_path)


def test_the_place_of_a_directory_is_known_before_there_is_one(directories: GrantFiles, shares: Path) -> None:
    assert directories.place("slot-1-0a1b") == shares / "slot-1-0a1b" / "share"
    assert not shares.exists()


def test_a_container_reads_its_cards_and_its_environment(directories: GrantFiles) -> None:
    share = directories.place("slot-1-0a1b")
    grant = a_grant(edits={"env": ["A=1", "B=it's two; words"]})
    directories.write(grant, CARDS)
    assert orjson.loads((share / "devices.json").read_bytes()) == [
        {"uuid": "GPU-1", "index": 1, "memoryMiB": 4_000, "cores": 30}
    ]
    script = f'. {shlex.quote(str(share / "environment"))}; echo "$A|$B"'
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "1|it's two; words\n"
    assert directories.all() == (grant,)


def test_the_container_sees_neither_its_record_nor_unfinished_files(directories: GrantFiles) -> None:
    directories.write(a_grant(), CARDS)
    assert sorted(path.name for path in directories.place("slot-1-0a1b").iterdir()) == ["devices.json", "environment"]


def test_nothing_is_written_twice(directories: GrantFiles) -> None:
    directories.write(a_grant(), CARDS)
    share = directories.place("slot-1-0a1b")
    before = {path.name: path.stat().st_ino for path in share.iterdir()}
    directories.write(a_grant(), CARDS)
    assert {path.name: path.stat().st_ino for path in share.iterdir()} == before


def test_directories_go_with_their_pod(directories: GrantFiles, shares: Path) -> None:
    mine, other = a_grant(), a_grant("slot-2-ffff", pod="b")
    for grant in (mine, other):
        directories.write(grant, CARDS)
    assert directories.remove(lambda grant: grant.pod_uid == "uid-a") == [mine]
    assert [path.name for path in shares.iterdir()] == ["slot-2-ffff"]


def test_one_that_a_disk_does_not_let_go_goes_later(directories: GrantFiles, shares: Path) -> None:
    directories.write(a_grant(), CARDS)
    with pytest.MonkeyPatch.context() as read_only:
        read_only.setattr(shutil, "rmtree", refuse)
        assert directories.remove(lambda _: True) == []
    assert directories.all() == (a_grant(),)
    assert directories.remove(lambda _: True) == [a_grant()]
    assert list(shares.iterdir()) == []


def test_both_kinds_are_known_after_the_delivery_has_changed(directories: GrantFiles, tmp_path: Path) -> None:
    directories.write(a_grant(), CARDS)
    later = GrantFiles(tmp_path / "cdi", tmp_path / "shares")
    later.load()
    later.write(a_grant("slot-2-ffff", pod="b"), CARDS)
    assert {grant.name for grant in loaded(tmp_path).all()} == {"slot-1-0a1b", "slot-2-ffff"}
    assert len(later.remove(lambda _: True)) == 2
    assert loaded(tmp_path).all() == ()


def refuse(path: Path) -> None:
    raise OSError(errno.EROFS, "Read-only file system", str(path))


def test_directories_that_no_container_has_do_not_pile_up(directories: GrantFiles, shares: Path) -> None:
    """An agent can die before it has written the record."""
    directories.write(a_grant(), CARDS)
    for name in ("slot-2-known", "slot-3-forgotten"):
        directories.place(name).mkdir(parents=True)
    (shares / "of-somebody-else").mkdir()
    directories.remove_unused({"slot-2-known"})
    assert sorted(path.name for path in shares.iterdir()) == ["of-somebody-else", "slot-1-0a1b", "slot-2-known"]


@pytest.mark.parametrize("half", ["grant.json", "share/devices.json", "share/environment"])
def test_what_a_power_loss_has_left_half_written_is_whole_before_its_container_starts_again(
    directories: GrantFiles, tmp_path: Path, half: str
) -> None:
    directories.write(a_grant(), CARDS)
    file = tmp_path / "shares" / "slot-1-0a1b" / half
    whole = file.read_bytes()
    file.write_bytes(b"")  # renamed, and its content not on the disk yet
    later = loaded(tmp_path)
    later.remove_unused({"slot-1-0a1b"})
    later.write(a_grant(), CARDS)
    assert file.read_bytes() == whole


def test_what_a_power_loss_has_left_half_written_of_a_pod_that_is_gone_goes(
    directories: GrantFiles, tmp_path: Path
) -> None:
    directories.write(a_grant(), CARDS)
    (tmp_path / "shares" / "slot-1-0a1b" / "grant.json").write_bytes(b"")
    loaded(tmp_path).remove_unused(())
    assert list((tmp_path / "shares").iterdir()) == []


@pytest.mark.parametrize("text", [b"", b"{", grant_file(a_grant("../.."))])
def test_a_record_that_is_not_ours_leads_to_nothing(tmp_path: Path, shares: Path, text: bytes) -> None:
    (shares / "slot-1-0a1b").mkdir(parents=True)
    (shares / "slot-1-0a1b" / "grant.json").write_bytes(text)
    inner = loaded(tmp_path)
    assert inner.remove(lambda _: True) == []
    assert (shares / "slot-1-0a1b" / "grant.json").exists()


def test_a_container_with_hami_core_has_counters_of_its_own_and_nothing_in_common(tmp_path: Path) -> None:
    hami = tmp_path / "hami"
    hami.mkdir()
    own = own_directory(str(hami), "uid-a_main")
    other = own_directory(str(hami), "uid-b_main")
    assert own != other
    for path in (own / "usage.cache", other / "usage.cache"):
        assert path.stat().st_mode & 0o777 == 0o666, "its programs have any user"
    assert {path.name for path in hami.iterdir()} == {"containers"}
    assert {path.name for path in own.iterdir()} == {"usage.cache"}
    assert not own.stat().st_mode & 0o022, "only the agent makes files there"
    (own / "usage.cache").write_text("counters")
    remove_own_directory(str(hami), a_grant().place)
    assert not own.exists()
    assert other.exists()


def test_the_counters_begin_anew_with_each_start_and_never_while_it_runs(tmp_path: Path) -> None:
    region = own_directory(str(tmp_path), "uid-a_main", starts=True) / "usage.cache"
    region.write_text("counters of version 1.1")
    own_directory(str(tmp_path), "uid-a_main")
    assert region.read_text() == "counters of version 1.1"
    running = region.open()
    before = os.umask(0o077)
    try:
        own_directory(str(tmp_path), "uid-a_main", starts=True)
    finally:
        os.umask(before)
    assert region.read_text() == ""
    assert region.stat().st_mode & 0o777 == 0o666
    assert running.read() == "counters of version 1.1", "who still has it keeps what it has"
    running.close()


def test_counters_that_somebody_made_a_link_lead_nowhere(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("of the node")
    other.chmod(0o600)
    region = own_directory(str(tmp_path), "uid-a_main", starts=True) / "usage.cache"
    region.unlink()
    region.symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"):
        own_directory(str(tmp_path), "uid-a_main")
    own_directory(str(tmp_path), "uid-a_main", starts=True)
    assert not region.is_symlink()
    assert (other.read_text(), other.stat().st_mode & 0o777) == ("of the node", 0o600)


def test_without_hami_core_nothing_is_removed(tmp_path: Path) -> None:
    remove_own_directory("", a_grant().place)
    assert list(tmp_path.iterdir()) == []
