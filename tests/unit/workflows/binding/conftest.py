"""What several tests of the way to a Binding begin with."""

import pytest

from builders import a_card
from fakes.api_server import ApiServer
from fakes.objects import a_pod_object
from fakes.operator_parts import OperatorParts, an_operator


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over one node with two cards; pod `a` wants 4000 MiB of a card."""
    for index in range(2):
        api.put_card(a_card(index))
    api.put_pod(a_pod_object("a"))
    return an_operator(api)
