"""`cordon` and `uncordon`: annotations on cards, which the operator takes for a person's word.

A card has a mark of its own and one for its node, and takes new pods once neither is there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from enum import Enum

import click

from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.options import Common, Named, common_options, completed_names, named_objects
from gpuledger.command_line.output import ALLOCATIONS, all_cards, card_named, cordon_of, utc_now
from gpuledger.formats.custom_resource.stored_card import CORDON_ANNOTATION, CORDON_TIME, NODE_CORDON_ANNOTATION
from gpuledger.model.errors import ApiError, BadInput
from gpuledger.model.json_object import Json

NO_REASON = "cordoned by hand"

NAME_LENGTH = 60
"""Characters of an account's name; that of a login service can be any."""


class Kept(Enum):
    """The cards that stay as they are."""

    NONE = 0
    MARKED = 1
    """Those that are cordoned, for whatever reason."""
    ALL = 2


cards_argument = click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="[card/UUID | node/NAME]...",
    shell_complete=completed_names("card", "node"),
)
"""The cards that a command is about, one by one or all of a node."""


@click.command(short_help="Keep new pods off cards or a node.")
@cards_argument
@click.option("--reason", default=NO_REASON, show_default=True, help="Reason that the card shows.")
@common_options("name")
def cordon(names: tuple[str, ...], reason: str, common: Common) -> None:
    """Keep new pods off cards, or off all cards of a node; pods that hold them stay.

    Writes the reason, with your name and the time, into the annotation gpuledger.dev/cordoned of cards, or
    gpuledger.dev/cordoned-node of all cards of a node. Your account needs `patch` on gpuallocations. Exit status: 0, or
    2 after an error; a second run changes nothing.
    """
    _change(names, reason, common)


@click.command(short_help="Let cordoned cards take new pods again.")
@cards_argument
@common_options("name")
def uncordon(names: tuple[str, ...], common: Common) -> None:
    """Let cordoned cards take new pods again. Exit status as for `cordon`.

    A card that was cordoned by itself stays so when its node is uncordoned, and the other way round; the command says
    which, and why.
    """
    _change(names, None, common)


def _change(names: tuple[str, ...], reason: str | None, common: Common) -> None:
    failed, all_done = False, list[Json]()
    with common.cluster() as cluster:
        for done in change_cordons(cluster, names, reason):
            failed = failed or done["error"] is not None
            all_done.append(done)
            if common.for_people or done["error"] is not None:
                say(described(done), err=done["error"] is not None)
    if not common.for_people:
        common.show({"items": all_done}, lambda _: (), (f"card/{done['uuid']}" for done in all_done))
    sys.exit(2 if failed else 0)


def say(text: str, err: bool = False) -> None:
    """Print a line about what was done; that its reader is gone is no reason to leave the rest undone."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the program ends


def change_cordons(
    cluster: ClusterAccess, names: Iterable[str], reason: str | None, kept: Kept = Kept.NONE
) -> Iterator[Json]:
    """Cordon cards for a reason, or take that back with None; yield for each card what was done.

    All names are looked up before anything is written. Raises BadInput for names that mean no card, and ApiError from
    the reading; a write that fails is reported in what is yielded, and the next card has its turn.
    """
    wanted, by = named_objects(tuple(names), ("card", "node")), ""
    for allocation, mark in _meant(all_cards(cluster), wanted):
        name, spec, before = allocation["metadata"]["name"], allocation["spec"], cordon_of(allocation, mark)
        other = NODE_CORDON_ANNOTATION if mark == CORDON_ANNOTATION else CORDON_ANNOTATION
        done = {
            "name": name,
            "uuid": spec["uuid"],
            "node": spec["nodeName"],
            "index": spec["index"],
            "before": before,
            "now": reason,
        }
        done |= {"of": "card" if mark == CORDON_ANNOTATION else "node", "stays": cordon_of(allocation, other)}
        keep = kept is Kept.ALL or (kept is Kept.MARKED and before is not None)
        if keep or before == reason or (before and reason and before.startswith(f"{reason} (")):
            yield {**done, "now": before, "did": "nothing", "error": None}
            continue
        if reason is not None:
            by = by or _by_whom(cluster)
        value = None if reason is None else f"{reason} ({by})"
        try:
            cluster.merge(f"{ALLOCATIONS}/{name}", {"metadata": {"annotations": {mark: value}}})
        except (ApiError, BadInput) as error:
            yield {**done, "now": before, "did": "failed", "error": str(error)}
        else:
            yield {**done, "did": "uncordoned" if reason is None else "cordoned", "error": None}


def _by_whom(cluster: ClusterAccess) -> str:
    """Return the account's name and the time, the time alone from an API server that has no such question."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    now = utc_now().strftime(CORDON_TIME)
    try:
        found = cluster.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        return f"{found['status']['userInfo']['username'][:NAME_LENGTH]}, {now}"
    except (ApiError, BadInput, KeyError, TypeError):
        return now


def described(done: Json) -> str:
    """Return the result for a card, in a sentence."""
    card = f"card {done['uuid']} (node {done['node']}, index {done['index']})"
    if done["did"] == "failed":
        return f"{card}: {done['error']}"
    if done["did"] == "nothing":
        return f"{card} {_unchanged(done)}"
    if done["did"] == "uncordoned" and done["stays"] is not None:
        return f"{card} {_stays(done)}"
    if done["did"] == "uncordoned":
        return f"{card} takes new pods again"
    return f"{card} takes no new pods: {done['now']}" + (f" (before: {done['before']})" if done["before"] else "")


def _unchanged(done: Json) -> str:
    if done["now"] is not None:
        return f"is cordoned already: {done['now']}"
    return "is not cordoned" if done["stays"] is None else _stays(done)


def _stays(done: Json) -> str:
    if done["of"] == "card":
        return f"stays cordoned with its node: {done['stays']}; `uncordon node/{done['node']}` takes that back"
    return f"stays cordoned by itself: {done['stays']}; `uncordon card/{done['uuid']}` takes that back"


def _meant(objects: list[Json], names: Iterable[Named]) -> Iterable[tuple[Json, str]]:
    """Return the cards that are meant, in the order of the names and of their index, with the mark: each pair once."""
    found: dict[tuple[str, str], Json] = {}
    for each in names:
        name = each.name or ""
        if each.kind == "card":
            cards, mark = [card_named(objects, name)], CORDON_ANNOTATION
        else:
            cards, mark = [item for item in objects if item["spec"]["nodeName"] == name], NODE_CORDON_ANNOTATION
            if not cards:
                raise BadInput(f"node {name!r} has no cards in the ledger; `gpuledger top` shows those that have")
        for item in sorted(cards, key=lambda item: int(item["spec"]["index"])):
            found[item["metadata"]["name"], mark] = item
    return [(item, mark) for (_, mark), item in found.items()]
