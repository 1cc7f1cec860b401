"""Memory of what was noted last."""

from gpuledger.model.clock import BoundedMap


def test_what_was_noted_last_is_remembered_and_the_oldest_forgotten() -> None:
    latest: BoundedMap[str, int] = BoundedMap(3)
    for number in range(5):
        latest.note(f"key-{number}", number)
    assert [latest.get(f"key-{number}") for number in range(5)] == [None, None, 2, 3, 4]


def test_the_value_that_was_forgotten_is_known_to_whoever_noted_the_next_one() -> None:
    latest: BoundedMap[tuple[str, int], int] = BoundedMap(2)
    assert [latest.note(("key", number), number) for number in range(4)] == [None, None, 0, 1]
    assert latest.note(("key", 3), 30) is None, "known keys take no place"
    assert list(latest.items()) == [(("key", 2), 2), (("key", 3), 30)]


def test_what_is_noted_again_is_the_latest_with_its_new_value() -> None:
    latest: BoundedMap[str, int] = BoundedMap(2)
    latest.note("a", 1)
    latest.note("b", 2)
    latest.note("a", 3)
    latest.note("c", 4)
    assert ("b" in latest, latest.get("a"), latest.get("c")) == (False, 3, 4)


def test_what_is_dropped_is_not_remembered() -> None:
    latest: BoundedMap[str, None] = BoundedMap(2)
    latest.note("a", None)
    latest.drop("a")
    latest.drop("never noted")
    assert "a" not in latest
