"""NVIDIA's words for MPS are read as its documentation writes them; anything else says nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.runtime.mps import (
    FatalFault,
    ServerEnded,
    ServerStatus,
    daemon_command,
    daemon_environment,
    is_amount,
    log_entries,
    most_cores,
    most_memory,
    server_status,
    servers_of,
)

FAULT_LOG = """\
[2022-04-28 15:56:07.410 Other 11570] Volta MPS: status of client {11661, 1} is ACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: Server is handling a fatal GPU error.
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11641, 1} is INACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: The following devices
[2022-04-28 15:56:08.906 Other 11570] 0
[2022-04-28 15:56:08.907 Other 11570] 1
[2022-04-28 15:56:08.907 Other 11570] Volta MPS: The following clients have a sticky error set:
[2022-04-28 15:56:08.907 Other 11570] 11641
[2022-04-28 15:56:08.907 Other 11570] 11643
[2022-04-28 15:56:09.200 Other 11570] Client {11641, 1} exit
[2022-04-28 15:56:10.310 Other 11570] Volta MPS: Creating server context on device 0
"""

CONTROL_LOG = """\
[2013-08-05 12:50:23.347 Control 13894] Starting new server 13929 for user 500
[2013-08-05 12:50:24.870 Control 13894] NEW SERVER 13929: Ready
[2013-08-05 13:02:10.866 Control 13894] NEW CLIENT 19276 from user 500: Server already exists
[2013-08-05 13:02:26.226 Control 13894] Server 13929 exited with status 0
[2024-12-10 06:38:01.170 Control    64] Server 92 exited with status 1
"""


def test_the_programs_that_a_fault_has_ended_are_read_from_the_servers_log() -> None:
    assert log_entries(FAULT_LOG.splitlines()) == [FatalFault(11570, (11641, 11643))]


def test_ends_of_servers_are_read_from_the_daemons_log() -> None:
    assert log_entries(CONTROL_LOG.splitlines()) == [ServerEnded(13929, 0), ServerEnded(92, 1)]


@given(st.lists(st.text(max_size=60) | st.sampled_from([*FAULT_LOG.splitlines(), *CONTROL_LOG.splitlines()])))
def test_no_log_is_too_strange(lines: list[str]) -> None:
    entries = log_entries(lines)
    assert len(entries) <= len(lines)


@pytest.mark.parametrize(
    ("answer", "servers"),
    [("", ()), ("6472", (6472,)), ("6472\n6480\n", (6472, 6480)), ("No servers\n", ()), ("-1\n1e3\n99999999999\n", ())],
)
def test_servers_are_lines_that_are_numbers(answer: str, servers: tuple[int, ...]) -> None:
    assert servers_of(answer) == servers


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("ACTIVE", ServerStatus.ACTIVE),
        ("Server status: FAULT\n", ServerStatus.FAULT),
        ("INITIALIZING", ServerStatus.INITIALIZING),
        ("Server 12 does not exist", ServerStatus.UNKNOWN),
        ("", ServerStatus.UNKNOWN),
        ("DEFAULT", ServerStatus.UNKNOWN),
        ("INACTIVE", ServerStatus.UNKNOWN),
    ],
)
def test_a_servers_state_is_a_word_of_its_own(answer: str, status: ServerStatus) -> None:
    assert server_status(answer) is status


def test_the_daemon_runs_in_the_foreground_and_serves_all_users_only_if_asked_to() -> None:
    assert daemon_command(True) == ["nvidia-cuda-mps-control", "-f", "-multiuser-server"]
    assert daemon_command(False) == ["nvidia-cuda-mps-control", "-f"]


def test_cards_are_named_by_uuid() -> None:
    environment = daemon_environment("/mps/pipe", "/mps/log", ["GPU-1", "GPU-2"])
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/pipe"


def test_each_limit_has_a_command_that_reads_it() -> None:
    assert most_memory("GPU-1", 8000) == (
        "set_default_device_pinned_mem_limit GPU-1 8000M",
        "get_default_device_pinned_mem_limit GPU-1",
    )
    assert most_cores(30) == ("set_default_active_thread_percentage 30", "get_default_active_thread_percentage")


@pytest.mark.parametrize(("answer", "amount"), [("7G", True), ("8000M\n", True), ("30.0", True), ("", False)])
@pytest.mark.parametrize("more", ["", "\n"])
def test_an_amount_is_told_from_an_error(answer: str, amount: bool, more: str) -> None:
    assert is_amount(answer + more) is amount
    assert not is_amount(f"Failed: {answer}")
