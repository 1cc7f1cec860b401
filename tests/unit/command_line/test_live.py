"""`top --watch`: what is appended where nobody looks, and what fits on a screen."""

import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from builders import a_card, cards_of
from fakes.allocations import an_allocation, two_nodes
from gpuledger.command_line.output import Screen
from gpuledger.command_line.top.live import CardWatch, Changes, ReportingClient, TopOptions, picture
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import NotFound, Unreachable
from gpuledger.reports.cards import CardReport, report_of_stored
from gpuledger.reports.tables import Terminal

Json = dict[str, Any]


def reports_of(objects: list[Json]) -> list[CardReport]:
    return [report_of_stored(stored_card(item)) for item in objects]


def options(view: str = "nodes", output: str = "table", width: int | None = None) -> TopOptions:
    return TopOptions(view, output, None, Terminal(width=width))


def test_at_first_all_rows_are_printed_then_those_that_differ() -> None:
    changes, objects = Changes(options()), two_nodes()
    assert [line.split()[0] for line in changes.of(reports_of(objects))] == ["NODE", "node-2", "node-10"]
    assert changes.of(reports_of(objects)) == []
    (row,) = changes.of(reports_of([*objects[:2], an_allocation(stored_card(objects[2]).card)]))
    assert (row.split()[0], row.split()[-1]) == ("node-2", "Ready")


def test_what_is_gone_is_said_once() -> None:
    changes, objects = Changes(options()), two_nodes()
    changes.of(reports_of(objects))
    (row,) = changes.of(reports_of(objects[:2]))
    assert (row.split()[0], row.split()[-1]) == ("node-2", "gone")
    assert changes.of(reports_of(objects[:2])) == []


def test_data_are_one_line_for_each_change_with_what_is_new_and_what_is_gone() -> None:
    changes, objects = Changes(options("cards", "json")), two_nodes()
    (first,) = map(json.loads, changes.of(reports_of(objects)))
    assert [card["uuid"] for card in first["cards"]] == ["GPU-node-10-0", "GPU-node-10-1", "GPU-node-2-0"]
    assert changes.of(reports_of(objects)) == []
    (change,) = map(json.loads, changes.of(reports_of(objects[1:])))
    assert change == {"cards": [], "gone": ["GPU-node-10-0"]}


def test_a_node_that_is_cordoned_meanwhile_is_a_change() -> None:
    changes, objects = Changes(options()), two_nodes()
    changes.of(reports_of(objects))
    (row,) = changes.of(reports_of(objects), {"node-10"})
    assert row.startswith("node-10")
    assert "cordoned" in row
    assert "cordoned" in "".join(picture(options(width=100), reports_of(objects), "", 20, "12:00:00", {"node-10"}))


async def test_which_nodes_are_cordoned_is_what_was_read_and_then_what_is_heard() -> None:
    nodes = [{"metadata": {"name": name, "uid": f"uid-of-{name}"}, "spec": {"unschedulable": True}} for name in "abc"]
    watch = CardWatch(None, [], nodes[:2])
    assert watch.cordoned() == {"a", "b"}
    watch.node_changed(nodes[2], gone=False)
    watch.node_changed(nodes[0], gone=True)  # the end of the cordon, for a watch of those that are
    assert watch.cordoned() == {"b", "c"}
    assert watch.news.is_set()
    listed = watch.nodes_listing()
    listed({"uid-of-c"})
    assert watch.cordoned() == {"c"}


def test_a_picture_fits_on_the_screen_and_says_what_it_leaves_out() -> None:
    objects = [an_allocation(card) for card in cards_of("node-a", 60)]
    lines = picture(options("cards", width=100), reports_of(objects), "", 20, "12:00:00")
    assert len(lines) == 20
    assert max(map(len, lines)) <= 100
    shown = sum("GPU-node-a-" in line for line in lines)
    assert lines[-1].startswith(f"... {60 - shown} more")


def test_the_sum_stays_in_the_picture_though_not_all_rows_do() -> None:
    objects = [an_allocation(a_card(0, f"node-{number}")) for number in range(60)]
    lines = picture(options(width=100), reports_of(objects), "", 20, "12:00:00")
    assert len(lines) == 20
    assert lines[-2].startswith("all ")
    shown = sum(line.startswith("node-") for line in lines)
    assert lines[-1].startswith(f"... {60 - shown} more")


def test_a_picture_says_why_there_is_no_news() -> None:
    head = picture(options(width=60), reports_of(two_nodes()), "the server is gone " * 10, 20, "12:00:00")[0]
    assert "no news: the server" in head
    assert len(head) <= 60


async def test_a_list_read_anew_removes_what_is_not_in_it() -> None:
    objects = two_nodes()
    watch = CardWatch(None, objects)
    listed = watch.listing()
    late = an_allocation(a_card(7, "node-2"))
    watch.changed(late, False)  # made while the list was read
    listed({objects[0]["metadata"]["uid"]})
    assert set(watch.cards) == {objects[0]["metadata"]["uid"], late["metadata"]["uid"]}


async def test_cards_of_other_nodes_and_deleted_ones_are_not_watched() -> None:
    objects = two_nodes()
    watch = CardWatch("node-10", objects[:2])
    watch.changed(objects[2], False)
    watch.changed(objects[0], True)
    assert [card.card.uuid for card in watch.cards.values()] == ["GPU-node-10-1"]


async def test_what_keeps_news_away_is_said_until_something_comes() -> None:
    refusals: list[Exception] = [Unreachable("the server is gone", 503), NotFound("no such thing", 404)]

    class Client:
        async def request(self, *_: object, **__: object) -> Json:
            raise refusals[0]

        @contextlib.asynccontextmanager
        async def stream(self, *_: object) -> AsyncIterator[AsyncIterator[bytes]]:
            if len(refusals) > 1:
                raise refusals.pop()
            yield events([b"{}"])

    async def events(lines: list[bytes]) -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    said: list[str] = []
    client = ReportingClient(cast("KubeClient", Client()), said.append)
    with pytest.raises(Unreachable):
        await client.request("GET", "/api")
    with pytest.raises(NotFound):
        async with client.stream("/api", {}, 1.0):
            pass
    async with client.stream("/api", {}, 1.0) as lines:
        assert [line async for line in lines] == [b"{}"]
    assert said == ["the server is gone", "no such thing", ""]


def test_a_screen_is_painted_in_place_and_given_back_after_an_error() -> None:
    terminal = io.StringIO()
    with contextlib.suppress(KeyboardInterrupt), Screen(terminal) as screen:
        screen.show(["one", "two"])
        raise KeyboardInterrupt
    text = terminal.getvalue()
    assert text.startswith("\x1b[?1049h")
    assert "\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J" in text
    assert text.endswith("\x1b[?1049l")
