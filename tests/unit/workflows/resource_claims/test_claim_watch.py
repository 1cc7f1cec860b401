"""Claims are followed from the first pod on that brings one."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from fakes.api_server import ApiServer
from fakes.operator_parts import an_operator
from fakes.virtual_time import settle
from gpuledger.formats.resource_claims.cel import evaluation
from gpuledger.model.errors import Unreachable
from gpuledger.workflows.resource_claims.claims import follow_claims


async def test_the_library_for_selectors_is_loaded_before_the_first_claim_is_read(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first selector would load it, from a disk perhaps, and nothing else would be answered meanwhile."""
    happened: list[str] = []

    class NotReached:
        async def request(self, method: str, path: str, **_: Any) -> Any:
            happened.append("read")
            raise Unreachable(f"{method} {path}")

    monkeypatch.setattr(evaluation, "load", lambda: happened.append("loaded"))
    book = an_operator(api).workflows.claims.book
    following = asyncio.ensure_future(follow_claims(NotReached(), book))  # type: ignore[arg-type]
    await settle()
    assert happened == []
    book.wanted.set()
    await settle()
    assert happened[:2] == ["loaded", "read"]
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
