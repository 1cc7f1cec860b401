"""An operator and its kube-scheduler, each behind a proxy, that can be killed, frozen and started again."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from chaos.steps import Program
from control_plane import ControlPlaneError, ManagedProcess
from faults.kinds import Rates, Weather
from faults.proxy import Proxy
from installation import Installation

PROGRAMS: tuple[Program, ...] = ("operator", "scheduler")

STARTS = 5
"""How often a program may end while it starts: the API server may be away."""

LAST_LINES = 30


class Hands:
    """Does things one after the other, in one thread that lives as long as what it starts."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._last: Future[Any] | None = None
        self.failure: BaseException | None = None
        """What was raised first; the run is void then."""

    def do(self, what: Any, *arguments: Any) -> None:
        """Have something done when everything before it is done."""
        self._last = self._pool.submit(self._do, what, *arguments)

    def _do(self, what: Any, *arguments: Any) -> None:
        try:
            what(*arguments)
        except BaseException as error:  # noqa: BLE001 - shown by whoever waits
            self.failure = self.failure or error

    def wait(self) -> None:
        """Wait until everything is done. Raises the first error there was."""
        if self._last is not None:
            self._last.result()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Let the thread end, and with it whatever it has started."""
        self._pool.shutdown(cancel_futures=True)


class Pair:
    """One replica of the product: `with Pair(installation) as pair:`."""

    def __init__(self, installation: Installation, api_rates: Rates, extender_rates: Rates, seed: int) -> None:
        self.installation = installation
        self.begin_s = time.monotonic()
        """When the proxies' clocks began."""
        self.api = Proxy.before_api_server(installation.kubeconfig)
        self.extender = Proxy(installation.extender_url)
        self.hands = {program: Hands(program) for program in PROGRAMS}
        self.ended: Counter[str] = Counter()
        """How often each program has ended without being killed."""
        self.last_words: list[str] = []
        """What each operator that has ended without being killed said last."""
        self._rates = {self.api: api_rates, self.extender: extender_rates}
        self._seed = seed
        self._kubeconfig = self.api.kubeconfig_from(installation.kubeconfig)
        self._log_begins = {path: path.stat().st_size if path.exists() else 0 for path in self.logs}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.api)
            stack.enter_context(self.extender)
            for hands in self.hands.values():
                stack.callback(hands.close)
            stack.callback(self.wait)
            stack.callback(self.stop_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def name(self) -> str:
        """The operator's name in files."""
        return f"operator{self._suffix}"

    @property
    def _suffix(self) -> str:
        return self.installation.settings_file.stem.removeprefix("settings")

    @property
    def logs(self) -> list[Path]:
        """The files to which the programs write."""
        directory = self.installation.plane.directory / "logs"
        return [directory / f"operator{self._suffix}.log", directory / f"kube-scheduler{self._suffix}.log"]

    def log_texts(self) -> Iterator[tuple[str, str]]:
        """Yield name and content of the logs since the pair began."""
        for path, begin in self._log_begins.items():
            if path.exists():
                yield path.name, path.read_bytes()[begin:].decode(errors="replace")

    # Programs.

    def start_all(self) -> None:
        """Have both programs started."""
        for program in PROGRAMS:
            self.hands[program].do(self._start, program)

    def stop_all(self) -> None:
        """Have both programs killed for good."""
        for program in PROGRAMS:
            self.hands[program].do(self._kill, program)

    def kill(self, program: Program, down_s: float) -> None:
        """Kill a program, and start it again after a while."""
        self.hands[program].do(self._kill, program)
        self.hands[program].do(time.sleep, down_s)
        self.hands[program].do(self._start, program)

    def freeze(self, program: Program, for_s: float) -> None:
        """Stop a program where it is for a while."""
        self.hands[program].do(self._signal, program, signal.SIGSTOP)
        self.hands[program].do(time.sleep, for_s)
        self.hands[program].do(self._signal, program, signal.SIGCONT)

    def look_after(self) -> None:
        """Start what has ended by itself, as a kubelet would. Call it now and then."""
        for program in PROGRAMS:
            self.hands[program].do(self._start_if_ended, program)

    def wait(self) -> None:
        """Wait until both programs are started, and everything else that was asked for is done."""
        for hands in self.hands.values():
            hands.wait()

    def _process(self, program: Program) -> ManagedProcess | None:
        return self.installation.operator if program == "operator" else self.installation.scheduler

    def _start(self, program: Program) -> None:
        if program == "operator":
            self.installation.start_operator(self._kubeconfig, wait=False)
            return
        for attempt in range(STARTS):
            try:
                self.installation.start_scheduler(self.extender.url)
                return
            except ControlPlaneError:  # it ends when it finds no API server
                self.ended[program] += 1
                if attempt == STARTS - 1:
                    raise

    def _start_if_ended(self, program: Program) -> None:
        process = self._process(program)
        if process is not None and not process.alive:
            self.ended[program] += 1
            if program == "operator":
                lines = process.log_text().splitlines()[-LAST_LINES:]
                self.last_words.append("\n".join([f"{self.name} has ended with status {process.returncode}", *lines]))
            self._start(program)

    def _kill(self, program: Program) -> None:
        process = self._process(program)
        if process is not None:
            process.kill()

    def _signal(self, program: Program, number: signal.Signals) -> None:
        process = self._process(program)
        if process is not None and process.alive:
            os.killpg(process.pid, number)

    # Weather.

    def storm(self) -> None:
        """Let the faults begin."""
        for proxy, rates in self._rates.items():
            proxy.weather = Weather(self._seed, rates)

    def calm(self) -> None:
        """Let all faults end."""
        for proxy in self._rates:
            if proxy.weather is not None:
                proxy.weather.rates = {}
            proxy.disarm()

    def faults(self) -> dict[str, int]:
        """Return what the weather has done: kind and fault -> how often."""
        counted: dict[str, int] = {}
        for proxy in self._rates:
            if proxy.weather is not None:
                counted |= proxy.weather.counts
        return counted

    def exchanges(self) -> list[tuple[float, str, str]]:
        """Return what has passed the proxies: when, by `time.monotonic`, which proxy, and what."""
        names = {"API server": self.api, "extender": self.extender}
        return [
            (self.begin_s + exchange.at_s, f"{name}{self._suffix}", str(exchange).partition(" s  ")[2])
            for name, proxy in names.items()
            for exchange in list(proxy.exchanges)
        ]
