"""A signal ends a command at whatever moment it comes: with its exit status, and with what the command has started."""

import asyncio
import contextlib
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from fakes import interrupts
from fakes.kubectl import FakeKubectl
from gpuledger.command_line.cluster_access import ENDING, Ending, cluster_access
from gpuledger.command_line.program import main
from gpuledger.model.errors import BadInput

NEVER = re.compile("never")
A_HELPER = ["sleep", "600"]

each_signal = pytest.mark.parametrize("number", ENDING)


@pytest.fixture(autouse=True)
def not_ignored() -> Iterator[None]:
    """Have the signals as a program in the foreground has them, wherever these tests run."""
    with interrupts.heeded():
        before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
        yield
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def ends_with(number: int) -> Iterator[None]:
    with pytest.raises(SystemExit) as ended:
        yield
    assert ended.value.code == 128 + number


@each_signal
def test_the_exit_status_is_the_signals_whatever_its_exception_became(number: int) -> None:
    with ends_with(number), Ending():
        with contextlib.suppress(SystemExit):
            signal.raise_signal(number)
        raise RuntimeError("release unlocked lock")


@each_signal
def test_nobody_waits_for_a_helper_after_a_signal_whose_exception_was_lost(number: int) -> None:
    """Python drops it where it calls back for a weak reference, as it does in each import."""
    waited = False
    with ends_with(number), Ending() as ending:
        helper = ending.start(A_HELPER, NEVER)
        with contextlib.suppress(SystemExit):
            signal.raise_signal(number)
        with pytest.raises(BadInput, match="does not serve"):
            helper.wait()
        waited = True
        ending.end_helpers()
    assert waited


@each_signal
def test_a_proxy_that_was_being_started_when_the_signal_came_is_ended(
    number: int, kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no setpriv on the PATH, which would end it with this process only."""
    scratch = kubectl.directory / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            started.append(self)
            signal.raise_signal(number)  # before anybody has this object

    monkeypatch.setattr("gpuledger.command_line.cluster_access.subprocess.Popen", Interrupted)
    served = False
    with ends_with(number), cluster_access(None, None) as cluster:
        cluster.open()
        served = True
    assert not served
    (proxy,) = started
    assert not list(scratch.iterdir())
    assert proxy.returncode is not None
    assert proxy.stdout is not None
    assert proxy.stdout.closed


@each_signal
@pytest.mark.parametrize("starts", ["a helper", "a list"])
def test_a_signal_does_not_disturb_a_thread_that_starts(
    number: int, starts: str, kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Thread.start` waits at a Condition, whose `with` fails after its release: a RuntimeError, here or in the thread.

    The program ended with 1, and after 20 s, when its thread's time was over.
    """
    release: Callable[[threading.Condition], None] = threading.Condition._release_save  # type: ignore[attr-defined]
    sent: list[int] = []
    raised: list[BaseException] = []

    def interrupted(self: threading.Condition) -> None:
        release(self)
        if threading.current_thread() is threading.main_thread() and not sent:
            sent.append(number)
            signal.raise_signal(number)

    with ends_with(number), cluster_access(None, None) as cluster:
        if starts == "a list":
            cluster.open()
        monkeypatch.setattr(threading.Condition, "_release_save", interrupted)
        try:
            cluster.begin("/api/v1/nodes")
        except BaseException as error:
            raised.append(error)
            raise
    assert [type(error) for error in raised] == [SystemExit]
    assert raised[0].__context__ is None  # it is raised for the signal, and in place of nothing else
    assert sent
    assert not ((kubectl.directory / "proxy.pid").exists() and kubectl.proxy_runs)


def test_helpers_are_ended_to_the_end_though_a_signal_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with ends_with(signal.SIGTERM), Ending() as ending:
        helper = ending.start(A_HELPER, NEVER)
        wait = helper._process.wait

        def interrupted(timeout_s: float | None = None) -> int:
            signal.raise_signal(signal.SIGTERM)
            return wait(timeout_s)

        monkeypatch.setattr(helper._process, "wait", interrupted)
        ending.end_helpers()
    assert helper._process.returncode is not None
    assert helper._process.stdout is not None
    assert helper._process.stdout.closed


@each_signal
def test_a_signal_cancels_what_an_event_loop_runs_and_waits_for_its_end(number: int) -> None:
    closed = []

    async def work() -> None:
        signal.raise_signal(number)
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    with ends_with(number), Ending() as ending:
        ending.run(work)
    assert closed


def test_the_second_signal_ends_what_does_not_heed_the_first() -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(600)

    with ends_with(signal.SIGINT), Ending() as ending:
        ending.run(work)


def test_a_signal_that_is_ignored_stays_ignored_as_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Ending():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@each_signal
def test_afterwards_signals_do_what_they_did_before(number: int) -> None:
    before = signal.getsignal(number)
    with Ending():
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before


def test_a_ctrl_c_while_a_command_is_imported_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Click says 1, which from `doctor` means that an error was found."""

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuledger.command_line.program.import_module", interrupted)
    assert CliRunner().invoke(main, ["doctor"]).exit_code == 130
