"""What is being measured, on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Story:
    """`with Story(steps) as story: story.step("...")`."""

    def __init__(self, steps: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (
            SpinnerColumn(),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self._progress = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._task = self._progress.add_task("", total=steps)
        self._steps, self._done = steps, 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        """Begin the next step."""
        self._progress.update(self._task, completed=self._done, description=text)
        self._done += 1
        if not self._console.is_terminal:
            self._console.print(f"[{self._done}/{self._steps}] {text}", markup=False, soft_wrap=True)
