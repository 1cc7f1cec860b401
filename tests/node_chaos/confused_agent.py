"""An agent that takes one pod for another, now and then: `confused_agent.py agent ...`. The chaos must find it.

Every third container gets what the ledger gave to the container before it.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

from gpuledger.agent.ledger_view import LedgerView
from gpuledger.command_line.program import main


def confused(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return what answers with the last answer, if it is about as many cards, every third time."""
    starts = count(1)
    last: dict[int, Any] = {}  # number of cards -> the last answer

    async def cards_of(view: LedgerView, pod: Any, container: str, number: int) -> Any:
        found = await right(view, pod, container, number)
        answer = last.get(number, found) if next(starts) % 3 == 0 else found
        last[number] = found
        return answer

    return cards_of


if __name__ == "__main__":
    LedgerView.cards_of = confused(LedgerView.cards_of)  # type: ignore[method-assign]
    main()
