"""Lists that come in pages, all from one moment of the cluster, as long as the API server remembers that moment."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuledger.model.errors import Conflict
from simulation.api_server import Json

if TYPE_CHECKING:
    from simulation.world import World

EXPIRED = "410: the provided continue parameter is too old"


def expired() -> Conflict:
    """Return the error for a token that is not valid any more."""
    return Conflict(EXPIRED, 410)


class Lists:
    """What is left of the lists that are being read."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._tokens = 0
        self._left: dict[str, tuple[int, Json]] = {}  # token -> starts of the API server, and the rest of a list

    def page(self, token: str, whole: Json | None) -> Json:
        """Return the next page: of a list that begins, or of one that goes on with a token. Raises Conflict."""
        starts = self._world.api.starts
        if whole is None:
            began, whole = self._left.pop(token, (-1, {}))
            if began != starts:
                raise expired()
        size, items = self._world.scenario.page, whole["items"]
        if not size or len(items) <= size:
            return {**whole, "metadata": {"resourceVersion": whole["metadata"]["resourceVersion"]}}
        self._tokens += 1
        following = f"token {self._tokens}"
        self._left[following] = (starts, {**whole, "items": items[size:]})
        return {"items": items[:size], "metadata": {**whole["metadata"], "continue": following}}


def token_of(parameters: Mapping[str, str] | None) -> str:
    """Return with which token a list goes on, empty if it begins."""
    return (parameters or {}).get("continue", "")
