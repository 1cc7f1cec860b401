"""`cordon` and `uncordon`: an annotation on cards, which the operator takes for a person's word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gpuledger.formats.custom_resource.resource import CORDON_ANNOTATION
from gpuledger.model.errors import ApiError, BadInput
from gpuledger.plugin.cards import Cluster, begin_cards, card_named, cordon_of, objects_in

Json = dict[str, Any]

NO_REASON = "cordoned by hand"


def change_cordons(cluster: Cluster, names: Iterable[str], reason: str | None) -> Iterator[Json]:
    """Cordon cards for a reason, or take that back with None; yield for each card what was done.

    All names are looked up before anything is written. Raises BadInput for names that mean no card, and ApiError from
    the reading; a write that fails is told in what is yielded, and the next card has its turn.
    """
    for allocation in _meant(list(objects_in(begin_cards(cluster))), list(names)):
        name, spec, before = allocation["metadata"]["name"], allocation["spec"], cordon_of(allocation)
        done = {"uuid": spec["uuid"], "node": spec["nodeName"], "index": spec["index"], "before": before, "now": reason}
        if before == reason:
            yield {**done, "did": "nothing", "error": None}
            continue
        try:
            cluster.patch_card(name, {"metadata": {"annotations": {CORDON_ANNOTATION: reason}}})
        except (ApiError, BadInput) as error:
            yield {**done, "now": before, "did": "failed", "error": str(error)}
        else:
            yield {**done, "did": "uncordoned" if reason is None else "cordoned", "error": None}


def told(done: Json) -> str:
    """Return what was done to a card, in a sentence."""
    card = f"card {done['uuid']} (node {done['node']}, index {done['index']})"
    if done["did"] == "failed":
        return f"{card}: {done['error']}"
    if done["did"] == "nothing":
        return f"{card} is not cordoned" if done["now"] is None else f"{card} is cordoned already: {done['now']}"
    if done["did"] == "uncordoned":
        return f"{card} takes new pods again"
    return f"{card} takes no new pods: {done['now']}" + (f" (before: {done['before']})" if done["before"] else "")


def _meant(objects: list[Json], names: Iterable[str]) -> Iterable[Json]:
    """Return the cards that are meant, each once, in the order of the names and of their index."""
    found: dict[str, Json] = {}
    for name in names:
        kind, _, rest = name.partition("/")
        if kind in ("card", "cards", "gpua") and rest:
            cards = [card_named(objects, rest)]
        elif kind in ("node", "nodes", "no") and rest:
            cards = [item for item in objects if item["spec"]["nodeName"] == rest]
            if not cards:
                raise BadInput(f"node {rest!r} has no cards in the ledger; `gpuledger top` shows those that have")
        else:
            raise BadInput(f"{name!r} is neither card/UUID nor node/NAME")
        for item in sorted(cards, key=lambda item: int(item["spec"]["index"])):
            found[item["metadata"]["name"]] = item
    return found.values()
