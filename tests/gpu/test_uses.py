"""The agent sees what a program uses of a card, and that a fault of the program is none of the card's."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpu.clients import a_card_that_is_not_cut
from gpu.hami_core_containers import Json
from stand_in_driver.stand_in_driver import CudaProgram

HERE = Path(__file__).parent
TAKEN_MIB = 2000
CONTEXT_MIB = 1024
"""A context takes less than this."""

PATIENCE_S = 60.0
FAULT_S = 10
"""For so long the agent waits for a fault to be told."""

NOBODYS_MIB = 256
"""More than a card has in use that no process is told of."""

ILLEGAL_ADDRESS = 700
"""CUDA_ERROR_ILLEGAL_ADDRESS."""

Start = Callable[..., CudaProgram]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return what starts a Python program on one card, with arguments; all end with the test."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    environment = {**own, "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": a_card_that_is_not_cut()}
    with ExitStack() as programs:
        yield lambda *arguments: programs.enter_context(CudaProgram([sys.executable, *arguments], environment))


def answer(program: CudaProgram, step: str = "") -> Json:
    """Have a step done, if one is named, and return what the program says."""
    if step:
        program.begin(step)
    assert program.has_answered(PATIENCE_S), "the program says nothing"
    line = program.answer()
    assert line, f"the program has ended with {program.end()}"
    said: dict[str, Any] = json.loads(line)
    assert "failed" not in said, said
    return said


def test_memory_and_work_of_a_program_are_seen_until_it_ends(start: Start, say: Callable[[str], None]) -> None:
    card = a_card_that_is_not_cut()
    agent, program = start(str(HERE / "watch_card.py"), "uses"), start("-m", "gpu.hami_core_client")
    total_mib = answer(program, "seen")["total_mib"]
    assert answer(agent, "look")["given_mib"][card] == total_mib, "what the driver keeps is not what CUDA lacks"
    assert answer(program, f"take {TAKEN_MIB}")["result"] == 0

    def of_the_program() -> tuple[Json, Json | None]:
        uses = answer(agent, "look")
        used = next(each for each in uses["cards"] if each["uuid"] == card)
        own = [each for each in uses["processes"] if (each["pid"], each["uuid"]) == (program.pid, card)]
        assert len(own) <= 1, own
        return used, own[0] if own else None

    used, own = of_the_program()
    assert used["memory_mib"] >= TAKEN_MIB
    if own is None:
        pytest.skip("NVML lists no processes, as in a container that has not the machine's process ids")
    assert own["memory_mib"] is None or TAKEN_MIB <= own["memory_mib"] <= TAKEN_MIB + CONTEXT_MIB
    assert own["memory_mib"] is None or used["memory_mib"] - own["memory_mib"] <= NOBODYS_MIB
    program.begin("compute")
    busy = [of_the_program() for _ in _for(8)]
    answer(program, "stop")
    program.kill()
    rates = [(card["cores_percent"], own["cores_percent"]) for card, own in busy if own is not None]
    assert rates[-1] == (None, None) or max(rate for _, rate in rates if rate is not None) >= 50, rates
    assert of_the_program()[1] is None
    say(
        f"{own['memory_mib']} MiB by NVML of a program that took {TAKEN_MIB}, {used['memory_mib']} of all; {total_mib} "
        f"beside what the driver keeps; of card and program in percent: {rates}"
    )


def _for(seconds: int) -> Iterator[None]:
    """Yield once a second."""
    for _ in range(seconds):
        time.sleep(1)
        yield


def test_a_programs_own_fault_is_told_and_leaves_the_card_in_service(start: Start, say: Callable[[str], None]) -> None:
    agent = start(str(HERE / "watch_card.py"), "faults", str(FAULT_S))
    assert answer(agent)["ready"]
    assert answer(start(str(HERE / "mps_client.py"), "fault"))["result"] == ILLEGAL_ADDRESS
    seen = answer(agent)
    say(f"a program that wrote where nothing is: {[each['text'] for each in seen['faults']] or 'no event of the card'}")
    assert seen["counted"] == []
    assert seen["out"] == {}
    assert {each["uuid"] for each in seen["faults"]} <= {a_card_that_is_not_cut()}
