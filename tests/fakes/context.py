"""What the parts of an operator are given, without an operator."""

from typing import Any, cast

from fakes.objects import DIALECTS
from gpuledger.configuration.settings import Settings
from gpuledger.model.clock import Clock
from gpuledger.workflows.context import Context
from gpuledger.workflows.leadership import Leadership


def a_context(clock: Clock, store: Any = None, events: Any = None, **settings: Any) -> Context:
    """Return a context of an active operator. Without a store, none of its parts may ask the API server."""
    return Context(store, Settings(**settings), DIALECTS, cast(Any, events), Leadership(None), clock)
