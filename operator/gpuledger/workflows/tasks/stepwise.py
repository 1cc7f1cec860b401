"""Answers that take several steps: at once, or with the event loop's other work between the steps."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

Answer = TypeVar("Answer")


def at_once(steps: Generator[None, None, Answer]) -> Answer:
    """Take all steps; return the answer. Raises what a step raises."""
    answers: list[Answer] = []
    for _ in _kept(steps, answers):
        pass
    return answers[0]


async def giving_way(steps: Generator[None, None, Answer]) -> Answer:
    """Take all steps, and let others have their turn after each; return the answer. Raises what a step raises."""
    answers: list[Answer] = []
    for _ in _kept(steps, answers):
        await asyncio.sleep(0)
    return answers[0]


def _kept(steps: Generator[None, None, Answer], answers: list[Answer]) -> Generator[None, None, None]:
    """Take the steps one by one, and keep what they return: a `for` would drop it."""
    answers.append((yield from steps))
