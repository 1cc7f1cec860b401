"""`cordon` and `uncordon`: an annotation on cards, which the operator takes for a person's word."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

import click

from gpuledger.command_line.cluster_access import ClusterAccess, cluster_access
from gpuledger.command_line.options import Named, access_options, completed_names, errors_shown, named_objects
from gpuledger.command_line.output import ALLOCATIONS, all_cards, card_named, cordon_of
from gpuledger.formats.custom_resource.stored_card import CORDON_ANNOTATION
from gpuledger.model.errors import ApiError, BadInput
from gpuledger.model.json_object import Json

NO_REASON = "cordoned by hand"


@click.command(short_help="Keep new pods off cards or a node.")
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="[card/UUID | node/NAME]...",
    shell_complete=completed_names("card", "node"),
)
@click.option("--reason", default=NO_REASON, show_default=True, help="Reason that the card shows.")
@access_options
def cordon(names: tuple[str, ...], reason: str, kubeconfig: str | None, context: str | None, no_color: bool) -> None:
    """Keep new pods off cards, or off all cards of a node; pods that hold them stay.

    Writes the annotation gpuledger.dev/cordoned, for which your account needs `patch` on gpuallocations. Exit status:
    0, or 2 after an error; a second run changes nothing.
    """
    _change(names, reason, kubeconfig, context)


@click.command(short_help="Let cordoned cards take new pods again.")
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="[card/UUID | node/NAME]...",
    shell_complete=completed_names("card", "node"),
)
@access_options
def uncordon(names: tuple[str, ...], kubeconfig: str | None, context: str | None, no_color: bool) -> None:
    """Let cordoned cards take new pods again. Exit status as for `cordon`."""
    _change(names, None, kubeconfig, context)


def _change(names: tuple[str, ...], reason: str | None, kubeconfig: str | None, context: str | None) -> None:
    failed = False
    with errors_shown(), cluster_access(kubeconfig, context) as cluster:
        for done in change_cordons(cluster, names, reason):
            try:
                click.echo(described(done), err=done["error"] is not None)
            except BrokenPipeError:  # the reader is gone; that is no reason to leave the other cards as they are
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the program ends
            failed = failed or done["error"] is not None
    sys.exit(2 if failed else 0)


def change_cordons(cluster: ClusterAccess, names: Iterable[str], reason: str | None) -> Iterator[Json]:
    """Cordon cards for a reason, or take that back with None; yield for each card what was done.

    All names are looked up before anything is written. Raises BadInput for names that mean no card, and ApiError from
    the reading; a write that fails is reported in what is yielded, and the next card has its turn.
    """
    wanted = named_objects(tuple(names), ("card", "node"))
    for allocation in _meant(all_cards(cluster), wanted):
        name, spec, before = allocation["metadata"]["name"], allocation["spec"], cordon_of(allocation)
        done = {"uuid": spec["uuid"], "node": spec["nodeName"], "index": spec["index"], "before": before, "now": reason}
        if before == reason:
            yield {**done, "did": "nothing", "error": None}
            continue
        try:
            cluster.merge(f"{ALLOCATIONS}/{name}", {"metadata": {"annotations": {CORDON_ANNOTATION: reason}}})
        except (ApiError, BadInput) as error:
            yield {**done, "now": before, "did": "failed", "error": str(error)}
        else:
            yield {**done, "did": "uncordoned" if reason is None else "cordoned", "error": None}


def described(done: Json) -> str:
    """Return the result for a card, in a sentence."""
    card = f"card {done['uuid']} (node {done['node']}, index {done['index']})"
    if done["did"] == "failed":
        return f"{card}: {done['error']}"
    if done["did"] == "nothing":
        return f"{card} is not cordoned" if done["now"] is None else f"{card} is cordoned already: {done['now']}"
    if done["did"] == "uncordoned":
        return f"{card} takes new pods again"
    return f"{card} takes no new pods: {done['now']}" + (f" (before: {done['before']})" if done["before"] else "")


def _meant(objects: list[Json], names: Iterable[Named]) -> Iterable[Json]:
    """Return the cards that are meant, each once, in the order of the names and of their index."""
    found: dict[str, Json] = {}
    for each in names:
        name = each.name or ""
        if each.kind == "card":
            cards = [card_named(objects, name)]
        else:
            cards = [item for item in objects if item["spec"]["nodeName"] == name]
            if not cards:
                raise BadInput(f"node {name!r} has no cards in the ledger; `gpuledger top` shows those that have")
        for item in sorted(cards, key=lambda item: int(item["spec"]["index"])):
            found[item["metadata"]["name"]] = item
    return found.values()
