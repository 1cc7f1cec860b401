"""Answers that take several steps: at once, or with the event loop's other work between the steps.

A step may yield a function: it is called before the next step, in a thread where others have their turn meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

Answer = TypeVar("Answer")
Step = Callable[[], None] | None


def run_to_end(steps: Generator[Step, None, Answer]) -> Answer:
    """Take all steps; return the answer. Raises what a step raises."""
    answers: list[Answer] = []
    for step in _kept(steps, answers):
        if step is not None:
            step()
    return answers[0]


async def run_cooperatively(steps: Generator[Step, None, Answer]) -> Answer:
    """Take all steps, and let others have their turn after each; return the answer. Raises what a step raises."""
    answers: list[Answer] = []
    for step in _kept(steps, answers):
        await (asyncio.sleep(0) if step is None else asyncio.to_thread(step))
    return answers[0]


def _kept(steps: Generator[Step, None, Answer], answers: list[Answer]) -> Generator[Step, None, None]:
    """Take the steps one by one, and keep what they return: a `for` would drop it."""
    answers.append((yield from steps))


async def nothing(_: object) -> None:
    """Do nothing, where something could be awaited."""
