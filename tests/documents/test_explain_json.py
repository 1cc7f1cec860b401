"""docs/reference/explain.md has every field and every state of an explanation, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from builders import a_card, a_holder, a_share
from documents.pages import ROOT
from gpuledger.ledger.quotas import Excess
from gpuledger.model.card import Amounts
from gpuledger.model.errors import CardVerdict, NodeVerdict, Reason, Refusal, SchedulerReason
from gpuledger.model.gang import Counted, GangStage, QuotaLimit
from gpuledger.model.request import Demand, JoinedClaim
from gpuledger.reports.explanation import (
    Explanation,
    FitsOn,
    GangProgress,
    GangTurn,
    Kind,
    Lacking,
    MemberState,
    NewNodes,
    State,
    asked,
    held,
    quota_json,
    shared,
)

PAGE = ROOT / "docs" / "reference" / "explain.md"
CARD = a_card()
LIMIT = QuotaLimit("gpus", "limits.nvidia.com/gpumem", Counted.MEMORY, 4_000, "nvidia", model="A100")
SHORT = Amounts(1, 1, 1)
KEPT_TOGETHER = "nodes[].cards[].short."
"""Its parts are named with it."""


def everything() -> Explanation:
    """Return an explanation in which nothing is empty."""
    node = NodeVerdict(
        "node-a",
        Refusal(Reason.NO_MEMORY, "no card with 8000 MiB free"),
        remedy="would fit",
        offered=False,
        cards=(CardVerdict(CARD, Reason.NO_MEMORY, "short", SHORT, ("default/a",)),),
        would_have_to_leave=("default/a",),
        scheduler=SchedulerReason("host-cpu", "asks for 500 CPUs"),
    )
    return Explanation(
        Kind.GANG,
        "lab",
        "train",
        GangStage.WAITING,
        "waits",
        new_nodes=[NewNodes("eight-cards", 1, "2030-01-01T00:00:00Z", "no help")],
        requests=[asked("main", Demand(1))],
        shared_claims=[shared(JoinedClaim("gpu", "ours", "uid", "node-a"))],
        holds=[held(CARD, a_holder("a", a_share(CARD)))],
        members=GangProgress(
            state=GangStage.WAITING,
            minimum=2,
            running=0,
            waiting=2,
            needed=2,
            turn=GangTurn("lab/other", "alone", 5),
            fits_on=[FitsOn("node-a", 1)],
            missing=[Lacking("1 whole card", 1, 1)],
            pods=[MemberState("train-0", "uid", "fits", "node-a")],
        ),
        waits_for=["default/a"],
        quota=quota_json(Excess(LIMIT, 5_000, 1_000, 1_000, ((a_holder("a", a_share(CARD)).pod, 1_000),))),
        warnings=["a field has no effect"],
        nodes=[node],
    )


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the name of each field, below the names of those that it is in."""
    if isinstance(value, list):
        yield f"{path}[]"
        for each in value:
            yield from paths(each, f"{path}[]")
    elif isinstance(value, dict):
        if path and not path.endswith("[]"):
            yield path
        for key, each in value.items():
            yield from paths(each, f"{path}.{key}" if path else key)
    elif not path.endswith("[]"):
        yield path


def documented(section: str) -> set[str]:
    """Return what the first column of a section's table names."""
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_field_of_the_json_is_documented_and_no_other() -> None:
    fields_shown = {each for each in paths(everything().json()) if not each.startswith(KEPT_TOGETHER)}
    assert documented(PAGE.read_text().partition("## States")[0]) == fields_shown


def test_the_json_has_all_fields_of_the_type_whatever_is_known() -> None:
    full, bare = everything().json(), Explanation(Kind.POD, "lab", "web", State.NO_GPU, "asks for no GPU").json()
    assert full.keys() == bare.keys()
    assert len(full) == len(fields(Explanation)) + 1  # hasPlace is worked out of the state
    progress = GangProgress(state=GangStage.RUNNING, minimum=1, running=1, waiting=0, needed=0)
    assert len(full["members"]) == len(fields(progress))


def test_every_state_is_documented_and_no_other() -> None:
    assert documented(PAGE.read_text().partition("## States")[2]) == {*State, *GangStage}
