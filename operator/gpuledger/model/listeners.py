"""Those who want to know when something happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

Happened = ParamSpec("Happened")


class Listeners(list[Callable[Happened, None]], Generic[Happened]):
    """Functions, called in their order with what has happened: `on_change.append(show)`, then `on_change(card)`."""

    def __call__(self, *happened: Happened.args, **named: Happened.kwargs) -> None:
        """Tell all of them."""
        for listener in self:
            listener(*happened, **named)
