"""How much one question may cost. Users write the requests, and so choose how long a search for their places takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepBudget:
    """Steps that are left, of about ten microseconds each. All searches for one answer share them."""

    left: int

    def spend(self, steps: int = 1) -> bool:
        """Take some steps away; tell whether there were as many."""
        self.left -= steps
        return self.left >= 0

    @property
    def is_spent(self) -> bool:
        """Tell whether more was wanted than there was: then something was not looked at."""
        return self.left < 0
