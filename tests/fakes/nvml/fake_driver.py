"""The fake NVML as a test uses it: what the driver says, changed step by step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes.nvml.fake_nvml import NvmlState, some_cards


class FakeDriver:
    """The fake NVML, told what to say."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.state = NvmlState(cards=some_cards(2))
        self.state.write(file)

    def says(self, **changes: Any) -> None:
        """Change some of what the driver says, from now on."""
        self.state = replace(self.state, **changes)
        self.state.write(self._file)

    def card(self, number: int, **changes: Any) -> None:
        """Change what one card says."""
        cards = list(self.state.cards)
        cards[number] = replace(cards[number], **changes)
        self.says(cards=tuple(cards))

    def event(self, uuid: str, data: int, **more: int) -> None:
        """Have a card tell of an event."""
        self.state = self.state.with_event(uuid, data, **more)
        self.state.write(self._file)
