"""Which cards a container may get at all, whatever is free on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from gpuledger.model.card import Card

MIG = "mig"
"""Mode of a MIG device that is a card of its own: one slot, and all of its own cores, which are a part of a GPU's."""

MIG_PARENT = "mig-parent"
"""Mode of a GPU that is cut into MIG devices which are not listed. Nothing here chooses these, so no pod gets it."""


class Payer(Protocol):
    """Who pays for what expressions cost, in steps of a microsecond: a namespace, which has so much for a while."""

    @property
    def paid(self) -> int:
        """How many steps it has paid for so far."""

    @property
    def skipped(self) -> int:
        """How often it was said so far that something may not be done now."""

    @property
    def is_spent(self) -> bool:
        """Tell whether it has to wait for a while, not only for the next turn of the event loop."""

    def may_go_on(self) -> bool:
        """Tell whether an expression may be compiled, or evaluated, now. If not, it is to be asked for again."""

    def pay(self, steps: int) -> None:
        """Count what that has cost."""

    def why_not(self) -> str:
        """Return why something is not evaluated yet, for people."""


class CardTest(Protocol):
    """A condition on a card that is written as an expression. Two of the same text and payer are equal."""

    @property
    def text(self) -> str:
        """The expression."""

    @property
    def payer(self) -> Payer | None:
        """Who pays for it; None: it may cost what it costs."""

    def compile(self) -> bool:
        """Compile the expression if it is not; tell whether it is now. Raises BadInput if it can't be."""

    def admits(self, card: Card) -> bool:
        """Tell whether the expression holds for the card. One that fails does not, nor one not evaluated yet."""

    def problem(self, card: Card) -> str:
        """Return why it can't be told whether it holds for the card, nothing if it can."""


SELECTOR_LENGTH = 120
"""Of an expression, in a sentence about it."""


def why_not_chosen(test: CardTest, card: Card) -> str:
    """Return why an expression does not choose a card, for people."""
    line = " ".join(test.text.split())
    shown = line if len(line) <= SELECTOR_LENGTH else f"{line[: SELECTOR_LENGTH - 3]}..."
    problem = test.problem(card)
    return f"the selector {shown} fails: {problem}" if problem else f"the selector {shown} does not hold"


@dataclass(frozen=True, slots=True)
class CardFilter:
    """Conditions on a card; an empty one holds for every card, and all must hold.

    Names of models are compared without case, as parts: `a100` is any A100. UUIDs are compared whole.
    """

    vendor: str = "nvidia"
    model: str = ""
    """The whole name of the model, for a resource that stands for one model."""
    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    """A card that says nothing of its mode meets this, too."""
    tests: tuple[CardTest, ...] = ()
    """Selectors of a ResourceClaim."""

    is_plain: bool = field(init=False, compare=False, repr=False)
    """Only the vendor matters, as for most pods."""
    has_words: bool = field(init=False, compare=False, repr=False)
    """There are conditions beside the expressions: they are looked at for each of thousands of cards."""

    def __post_init__(self) -> None:
        conditions = (self.model, self.use_models, self.avoid_models, self.use_uuids, self.avoid_uuids, self.modes)
        object.__setattr__(self, "has_words", any(conditions))
        object.__setattr__(self, "is_plain", not self.has_words and not self.tests)

    def names(self, card: Card) -> bool:
        """Tell whether the card is wanted by its UUID, or by its mode, or by an expression that holds for it."""
        by_mode = card.mode != "" and card.mode in self.modes
        return card.uuid in self.use_uuids or by_mode or bool(self.tests)

    def admits(self, card: Card) -> bool:
        """Tell whether the card meets all conditions."""
        if card.vendor != self.vendor or card.mode == MIG_PARENT:
            return False
        if self.is_plain:
            return True
        if self.has_words and not self._meets_words(card):
            return False
        for test in self.tests:  # noqa: SIM110 - no generator: there can be tens of thousands of cards
            if not test.admits(card):
                return False
        return True

    def _meets_words(self, card: Card) -> bool:
        model = card.model.lower()
        return (
            self.model.lower() in ("", model)
            and (not self.use_models or any(part.lower() in model for part in self.use_models))
            and not any(part.lower() in model for part in self.avoid_models)
            and (not self.use_uuids or card.uuid in self.use_uuids)
            and card.uuid not in self.avoid_uuids
            and (not self.modes or card.mode in ("", *self.modes))
        )
