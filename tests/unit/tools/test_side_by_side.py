"""How the tests are shared out among processes."""

from pathlib import Path

from side_by_side import BEGIN, GROUPS, WAITING, group_of, in_order

TESTS = Path(__file__).parents[2]


def test_the_files_and_directories_that_are_named_exist() -> None:
    named = [*GROUPS, *(name for name in BEGIN if name not in GROUPS.values()), *WAITING]
    assert [name for name in named if not (TESTS / name).exists()] == []


def test_files_of_one_group_stay_together_and_any_other_is_alone() -> None:
    assert group_of("tests/node/test_delivery.py::test_a[b::c]") == group_of("tests/node/test_node_truth.py::test_d")
    assert group_of("tests/unit/model/test_card.py::TestA::test_b[@]") == "unit/model/test_card.py"


def test_long_groups_begin_first_and_what_only_computes_last() -> None:
    groups = ["unit/model/test_card.py", "cluster/test_pod_condition.py", BEGIN[1], "node/test_first_day.py", BEGIN[0]]
    assert sorted(groups, key=in_order) == [
        *BEGIN[:2],
        "node/test_first_day.py",
        "cluster/test_pod_condition.py",
        groups[0],
    ]
