"""Who is alike, and how many names become a few words: nothing is joined of which a name could not be told."""

import pytest

from gpuledger.reports.tables import family, gathered, listed, nodes_named, pods_named, spans, title_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("default/chat-678c5fc7f9-2l2fm", "default/chat-678c5fc7f9-zm6pp"),
        ("default/chat-678c5fc7f9-2l2fm", "default/chat-5d4bcf6b9-xk7wq"),  # of a Deployment that is being rolled out
        ("default/train-0-rhm4h", "default/train-11-q2sqm"),  # of an indexed Job
        ("default/web-9", "default/web-10"),
        ("job1", "job27"),
        ("ml/lws-0-1", "ml/lws-3-2"),
    ],
)
def test_what_controllers_append_is_no_difference(one: str, other: str) -> None:
    assert family(one) == family(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("default/chat-1", "default/chat-678c5fc7f9-2l2fm"),  # a pod of its own: nobody would look for it among those
        ("default/chat", "default/chat-1"),
        ("default/web-0", "team/web-0"),
        ("default/embedding", "default/rendering"),
        ("default/gpu4-burner", "default/gpu4-other"),
    ],
)
def test_other_names_are_others(one: str, other: str) -> None:
    assert family(one) != family(other)


def test_many_that_are_equal_are_together_where_the_first_is() -> None:
    rows = [("b", 1), ("a-1", 1), ("a-2", 1), ("c", 1), ("a-3", 1), ("a-4", 2)]
    found = gathered(rows, lambda row: row[0], lambda row: row[1])
    assert found == [[("b", 1)], [("a-1", 1), ("a-2", 1), ("a-3", 1)], [("c", 1)], [("a-4", 2)]]


def test_few_keep_their_rows_and_their_places_and_so_does_one_with_many() -> None:
    rows = ["a-1", "b", "a-2", *["c-1"] * 5]
    assert gathered(rows, str, lambda _: None) == [[row] for row in rows]


def test_names_in_a_sentence_and_how_many_more_there_are() -> None:
    names = ["a", "b", "c", "d", "e"]
    assert [listed(names[:size]) for size in (1, 2, 3, 4)] == ["a", "a and b", "a, b and c", "a, b, c and 1 more"]
    assert listed(names, most=4) == "a, b, c, d and 1 more"
    assert title_of(["a"]) == "a"
    assert title_of(names) == "5 pods like a"


def test_pods_of_one_maker_are_one_name_with_their_number() -> None:
    crowd = [f"default/web-{number}" for number in range(24)]
    assert pods_named(["default/a", *crowd, "default/b"]) == "default/a, 24 pods like default/web-0, default/b"
    assert pods_named(["a", "b", *crowd[:2], "c"]) == "a, b, default/web-0 +2"
    assert pods_named([]) == ""


def test_nodes_are_named_with_how_many_are_on_each() -> None:
    assert nodes_named(["a", "a"]) == "a"
    assert nodes_named(["a", "b", "a"]) == "2 on a and 1 on b"
    assert nodes_named("abcde") == "1 on a, 1 on b, 1 on c and 2 more"


def test_numbers_in_a_row_are_one() -> None:
    assert spans([7, 0, 1, 2, 5, 2]) == "0-2, 5, 7"
    assert spans([3]) == "3"
    assert spans([]) == ""
