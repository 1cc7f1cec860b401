"""The programs of a node, which can be ended, stopped and started again; those that end by themselves come back."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from chaos.pair import Hands
from control_plane import ControlPlaneError
from local_node import BoxProcess
from node.gpu_node import GpuNode
from node_chaos.plan import PROGRAMS
from node_chaos.sight import lives
from node_chaos.steps import Program, Stoppable

IMPATIENT_AGENT = Path(__file__).with_name("impatient_agent.py")
FAULTY_AGENT = Path(__file__).with_name("faulty_agent.py")
STARTS = 60
START_PAUSE_S = 0.5
"""A kubelet ends when it finds no container runtime, and is started again, as by its node's init."""

GRACE_S = 12.0
HANGS_S = 20.0
"""How long a program may take to die: longer than any disk hangs."""


class Programs:
    """Agent, kubelet and containerd of a node; each has hands that do one thing after the other."""

    def __init__(self, gpu: GpuNode, agent: Sequence[str]) -> None:
        self._gpu, self.agent = gpu, agent
        self.hands: dict[Program, Hands] = {program: Hands(program) for program in PROGRAMS}
        self.ended: Counter[str] = Counter()
        """How often each has ended by itself."""
        self.agents: list[BoxProcess] = []
        """All agents there were."""

    def close(self) -> None:
        """Let the hands end, and with them what they have started."""
        for hands in self.hands.values():
            hands.close()

    def end(self, program: Program, down_s: float, gently: bool) -> None:
        """End a program, and start it again after a while."""
        hands = self.hands[program]
        hands.do(self._end, program, gently)
        hands.do(time.sleep, down_s)
        hands.do(self.start, program)

    def stop(self, program: Stoppable, for_s: float) -> None:
        """Stop a program where it is for a while."""
        hands = self.hands["agent" if program == "agent's child" else program]
        hands.do(self._stop, program, for_s)

    def look_after(self) -> None:
        """Start what has ended by itself. Call it now and then."""
        for program, hands in self.hands.items():
            hands.do(self._start_if_ended, program)

    def wait(self) -> None:
        """Wait until everything that was asked for is done."""
        for hands in self.hands.values():
            hands.wait()

    def start(self, program: Program) -> None:
        """Start a program. Raises ControlPlaneError if it does not start for half a minute."""
        for attempt in range(STARTS):
            try:
                self._start(program)
                return
            except ControlPlaneError:
                self.ended[program] += 1
                if attempt == STARTS - 1:
                    raise
                self._end(program, gently=False)
                time.sleep(START_PAUSE_S)

    def process(self, program: Program) -> BoxProcess | None:
        """Return a program as it runs or ran last."""
        node = self._gpu.node
        return {"agent": self._gpu.agent, "kubelet": node.kubelet, "containerd": node.containerd}[program]

    def _start(self, program: Program) -> None:
        if program == "agent":
            self.agents.append(self._gpu.start_agent(program=self.agent))
        elif program == "kubelet":
            self._gpu.node.start_kubelet()
        else:
            self._gpu.node.start_containerd()

    def _end(self, program: Program, gently: bool) -> None:
        process, pids = self.process(program), self._pids(program)
        if process is None:
            return
        if gently:
            process.terminate(GRACE_S)
        else:
            process.kill()
        deadline = time.monotonic() + HANGS_S
        while any(map(lives, pids)) and time.monotonic() < deadline:  # on a disk that hangs, nobody dies at once
            time.sleep(0.05)

    def _stop(self, program: Stoppable, for_s: float) -> None:
        pids = self._pids(program)
        for number, pause_s in ((signal.SIGSTOP, for_s), (signal.SIGCONT, 0.0)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(pause_s)

    def _pids(self, program: Stoppable) -> list[int]:
        """Return the ids of a program's processes, none if it has just ended."""
        with contextlib.suppress(ControlPlaneError, OSError, ValueError):
            if program == "agent":
                return self._gpu.agent_pids()
            if program == "agent's child":
                return self._gpu.agent_pids()[1:]
            process = self.process(program)
            return [process.program_pid] if process and process.alive else []
        return []

    def _start_if_ended(self, program: Program) -> None:
        process = self.process(program)
        if process is not None and not process.alive:
            self.ended[program] += 1
            self.start(program)
