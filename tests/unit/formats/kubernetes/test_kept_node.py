"""What keeps a node, and what undoes it: of a person's annotations, nothing is changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.kubernetes.kept_node import (
    CLUSTER_AUTOSCALER,
    KARPENTER,
    KEEPING,
    KEPT_ANNOTATION,
    Changes,
    keeping,
    letting_go,
)

THEIRS = st.dictionaries(st.sampled_from((*KEEPING, "example.com/other")), st.sampled_from(("true", "false", "")))


def changed(annotations: dict[str, str], change: Changes) -> dict[str, str]:
    return {name: value for name, value in {**annotations, **change}.items() if value is not None}


def test_both_autoscalers_are_told_in_one_write() -> None:
    written = {CLUSTER_AUTOSCALER: "true", KARPENTER: "true", KEPT_ANNOTATION: f"{CLUSTER_AUTOSCALER},{KARPENTER}"}
    assert keeping({"other": "x"}) == written
    assert letting_go(written) == dict.fromkeys(written)


@given(THEIRS)
def test_whatever_a_person_has_written_is_there_again_afterwards(theirs: dict[str, str]) -> None:
    kept = changed(theirs, keeping(theirs))
    assert theirs.items() <= kept.items()
    assert keeping(kept) == {}
    assert changed(kept, letting_go(kept)) == theirs


def test_what_a_person_takes_away_or_changes_meanwhile_stays_so() -> None:
    kept = changed({}, keeping({}))
    kept[KARPENTER] = "false"
    del kept[CLUSTER_AUTOSCALER]
    assert keeping(kept) == {}
    assert changed(kept, letting_go(kept)) == {KARPENTER: "false"}


def test_an_annotation_that_says_something_else_takes_nothing_else_away() -> None:
    written = {KEPT_ANNOTATION: "gpuledger.dev/gpus,x", "gpuledger.dev/gpus": "true", KARPENTER: "true"}
    assert letting_go(written) == {KEPT_ANNOTATION: None}
