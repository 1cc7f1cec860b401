"""Claims are followed from the first pod on that brings one."""

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest

from fakes.api_server import ApiServer
from fakes.operator_parts import an_operator
from fakes.virtual_time import settle
from gpuledger.formats.resource_claims.cel import evaluation
from gpuledger.kube_api.watch import Api
from gpuledger.model.errors import Unreachable
from gpuledger.workflows.kinds import follow_kind


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
    api_server = cast(Api, NotReached())
    parts = [book.read_what_pods_name(), *(follow_kind(api_server, each) for each in book.subscriptions.values())]
    following = asyncio.gather(*parts)
    await settle()
    assert happened == []
    book.wanted.set()
    await settle()
    assert happened[:2] == ["loaded", "read"]
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
