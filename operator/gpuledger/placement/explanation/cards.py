"""Why a card does not take a container as it is now: the first reason, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.ledger.entry import CardEntry, Room
from gpuledger.model.amounts import NOTHING, Amounts, total
from gpuledger.model.card import Card
from gpuledger.model.card_filter import MIG_PARENT, CardFilter, why_not_chosen
from gpuledger.model.refusal import Reason
from gpuledger.model.request import Demand
from gpuledger.placement.card_rules import match, most_by_rules, rules_text
from gpuledger.placement.explanation.verdict import CardVerdict, amounts_text
from gpuledger.placement.fit import fits


def card_verdict(demand: Demand, entry: CardEntry, room: Room | None, closed: str = "") -> CardVerdict:
    """Return whether a card takes a container. `room` is None for a card on which nothing can be placed.

    `closed` says who may use it without being in the ledger.
    """
    card = entry.card
    if not demand.admits(card):
        return CardVerdict(card, Reason.NOT_WANTED, why_not_wanted(demand, card))
    wanted = demand.amounts_on(card.capacity)
    if not wanted.fits_in(card.capacity):
        short = _lacking(wanted, card.capacity)
        return CardVerdict(card, Reason.CARD_TOO_SMALL, f"has {amounts_text(short)} less than requested", short)
    if not card.healthy:
        return CardVerdict(card, Reason.UNHEALTHY, entry.reason or "its node reports a fault")
    if room is None and entry.cordoned:
        return CardVerdict(card, Reason.CORDONED, f"cordoned: {entry.cordoned}")
    if room is None and closed:
        return CardVerdict(card, Reason.UNACCOUNTED, closed)
    if room is None:
        return CardVerdict(card, Reason.UNHEALTHY, "the operator still looks up its holders")
    if fits(demand, room):
        return CardVerdict(card, None, "takes it")
    return _verdict_on_room(demand, entry, room, wanted)


def _verdict_on_room(demand: Demand, entry: CardEntry, room: Room, wanted: Amounts) -> CardVerdict:
    card, names = entry.card, _by_size(entry)
    if room.shut:
        return CardVerdict(
            card, Reason.NO_WHOLE_CARD, f"taken as a whole{_kept(entry)}", _lacking(wanted, NOTHING), names
        )
    short = _lacking(wanted, room.free)
    if demand.exclusive and not room.idle:
        count = len(names)
        text = f"not entirely free: {count} pod{'s' if count > 1 else ''} on it{_kept(entry)}"
        return CardVerdict(card, Reason.NO_WHOLE_CARD, text, short, names)
    for reason, part in (
        (Reason.NO_MEMORY, Amounts(memory_mib=short.memory_mib)),
        (Reason.NO_CORES, Amounts(cores=short.cores)),
        (Reason.NO_SLOT, Amounts(number=short.number)),
    ):
        if part != NOTHING:
            return CardVerdict(card, reason, f"short by {amounts_text(short)}{_kept(entry)}", short, names)
    text = f"all cores are promised{_kept(entry)}"  # to others, which keeps those out, too, that name none
    return CardVerdict(card, Reason.NO_CORES, text, Amounts(cores=1), names)


def numa_verdict(demand: Demand, verdict: CardVerdict, cards: Sequence[CardVerdict]) -> CardVerdict:
    """Return the verdict on a card for a container whose cards have to be on one NUMA node. `cards` are all of them."""
    if verdict.reason is not None:
        return verdict
    numa_node = verdict.card.numa_node
    beside = sum(other.reason is None and other.card.numa_node == numa_node for other in cards)
    where = "its NUMA node" if numa_node is None else f"NUMA node {numa_node}"
    text = f"has room, but {where} has only {beside} of {demand.cards} such cards"
    return CardVerdict(verdict.card, Reason.NUMA, text, Amounts(number=demand.cards - beside))


def rules_verdict(demand: Demand, verdict: CardVerdict, cards: Sequence[CardVerdict]) -> CardVerdict:
    """Return the verdict on a card for a container whose cards have to match or to differ. `cards` are all of them."""
    if verdict.reason is not None:
        return verdict
    beside = most_by_rules(demand, (o.card for o in cards if o.reason is None and match(demand, o.card, verdict.card)))
    text = f"has room, but only {beside} of {demand.cards} such cards {rules_text((demand,))}"
    return CardVerdict(verdict.card, Reason.CONSTRAINT, text, Amounts(number=demand.cards - beside))


def why_not_wanted(demand: Demand, card: Card) -> str:
    """Return why a container may not get a card, whatever is free on it."""
    wanted = demand.wanted
    if card.vendor != wanted.vendor:
        return f"of vendor {card.vendor}, not {wanted.vendor}"
    if card.mode == MIG_PARENT:
        return "cut into MIG devices"
    filtered = _filtered(wanted, card)
    if not filtered and (lacking := demand.attribute_lacking(card)):
        return f"has no {lacking}"
    return filtered or "a MIG device: name it, or ask for one card by memory alone, to get a part of one"


def _filtered(wanted: CardFilter, card: Card) -> str:
    model = card.model.lower()
    if wanted.model and wanted.model.lower() != model:
        return f"model {card.model}, not {wanted.model}"
    if wanted.use_models and not any(part.lower() in model for part in wanted.use_models):
        return f"model {card.model}, not {' or '.join(wanted.use_models)}"
    avoided = next((part for part in wanted.avoid_models if part.lower() in model), "")
    if avoided:
        return f"model {card.model}, and the pod avoids {avoided}"
    if wanted.use_uuids and card.uuid not in wanted.use_uuids:
        return "not among the UUIDs that the pod names"
    if card.uuid in wanted.avoid_uuids:
        return "among the UUIDs that the pod avoids"
    if wanted.modes and card.mode not in ("", *wanted.modes):
        return f"mode {card.mode}, not {' or '.join(wanted.modes)}"
    test = next((each for each in wanted.tests if not each.admits(card)), None)
    return why_not_chosen(test, card) if test is not None else ""


def _lacking(wanted: Amounts, free: Amounts) -> Amounts:
    """Return what is missing, amount by amount."""
    missing = wanted - free
    return Amounts(max(0, missing.memory_mib), max(0, missing.cores), max(0, missing.number))


def _by_size(entry: CardEntry) -> tuple[str, ...]:
    """Return the UIDs of the pods that count on a card, who has most of its memory first."""
    parts = sorted(entry.shares_by_pod(), key=lambda part: (-part[1].amounts.memory_mib, part[0]))
    return tuple(uid for uid, _ in parts)


def _kept(entry: CardEntry) -> str:
    """Tell how much of what is taken is only kept for pods that are not there yet."""
    kept = total(share.amounts for uid, share in entry.shares_by_pod() if uid not in entry.holders)
    return f"; {kept.memory_mib:,} MiB of this are reserved for pods on their way" if kept != NOTHING else ""
