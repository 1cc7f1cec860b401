"""Answers that take several steps: at once, or with the event loop's other work between the steps."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

Answer = TypeVar("Answer")


def at_once(steps: Generator[None, None, Answer]) -> Answer:
    """Take all steps; return the answer. Raises what a step raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Answer = end.value
            return answer


async def giving_way(steps: Generator[None, None, Answer]) -> Answer:
    """Take all steps, and let others have their turn after each; return the answer. Raises what a step raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        await asyncio.sleep(0)
