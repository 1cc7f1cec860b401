"""What the API server refuses and accepts on a GPUAllocation, whoever writes it.

Each test has a card of its own on a real API server. A capacity here is 40960 MiB, 100 % and 10 slots.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.cluster import RequestFailed
from cluster.written_cards import AMOUNTS, CAPACITY, Card, a_holder, a_status, taking, total

pytestmark = pytest.mark.promise("never twice")

Json = dict[str, Any]


FOREVER = "the status says who holds this card and cannot be removed; remove the holders one by one"
ALONE = "an exclusive holder has to be alone on the card; choose a card that no pod holds"

each_amount = pytest.mark.parametrize("amount", AMOUNTS)


@contextmanager
def refused(field: str, message: str) -> Iterator[None]:
    with pytest.raises(RequestFailed, match=re.escape(f"{field}: ") + ".*" + re.escape(message)):
        yield


def test_a_new_card_is_held_by_nobody_whatever_its_creator_says(card: Card) -> None:
    card.create(card.manifest() | {"status": a_status(a_holder("a"))})
    assert "status" not in card.read()


def test_the_first_status_can_name_holders(card: Card) -> None:
    card.held_by(a_holder("a", 4096, 10), a_holder("b", 4096, 10))
    assert card.pods() == ["a", "b"]


@each_amount
def test_the_first_status_cannot_over_allocate(card: Card, amount: str) -> None:
    card.create()
    with refused(f"status.used.{amount}", "on this card"):
        card.write(a_status(taking(amount, CAPACITY[amount] + 1)))


@each_amount
@pytest.mark.parametrize("error", [-1, 1])
def test_a_total_that_is_not_the_sum_is_refused(card: Card, amount: str, error: int) -> None:
    card.create()
    holders = a_holder("a", 1024, 10, 2), a_holder("b", 2048, 20, 3)
    with refused(f"status.used.{amount}", "the total says"):
        card.write(a_status(*holders, used=total(*holders) | {amount: total(*holders)[amount] + error}))


def test_a_wrong_total_is_refused_with_both_numbers(card: Card) -> None:
    card.create()
    message = "memory: the total says 0 MiB, the holders add up to 1024 MiB; read the card again and repeat the change"
    with refused("status.used.memoryMiB", message):
        card.write(a_status(a_holder("a", 1024), used={"memoryMiB": 0, "cores": 0, "number": 1}))


def test_a_holder_cannot_pay_for_another_with_a_negative_amount(card: Card) -> None:
    card.create()
    with refused("status.holders[1].memoryMiB", "should be greater than or equal to 0"):
        card.write(a_status(a_holder("a", 50000), a_holder("b", -10000)))


def test_a_card_can_be_full(card: Card) -> None:
    card.held_by(*(a_holder(f"pod-{i}", 4096, 10) for i in range(10)))
    assert card.read()["status"]["used"] == CAPACITY


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        ("memoryMiB", "memory: 40961 MiB used of 40960 MiB on this card"),
        ("cores", "cores: 101 % used of 100 % on this card"),
        ("number", "slots: 11 used of 10 on this card"),
    ],
)
def test_an_entry_beyond_the_capacity_is_refused_with_the_numbers(card: Card, amount: str, message: str) -> None:
    small = taking(amount, 1, "a")
    card.held_by(small)
    with refused(f"status.used.{amount}", f"{message}; choose another card or wait until a holder leaves"):
        card.write(a_status(small, taking(amount, CAPACITY[amount], "b")))


@each_amount
def test_a_holder_can_leave_a_card_that_has_shrunk_below_what_stays(card: Card, amount: str) -> None:
    holders = [taking(amount, 3, "a"), taking(amount, 3, "b"), taking(amount, 3, "c")]
    card.held_by(*holders)
    card.patch_spec(capacity=CAPACITY | {amount: 1})
    card.write(a_status(*holders[1:]))
    assert card.pods() == ["b", "c"]


@each_amount
def test_a_card_that_has_shrunk_takes_no_new_holder(card: Card, amount: str) -> None:
    first = taking(amount, 5, "a")
    card.held_by(first)
    card.patch_spec(capacity=CAPACITY | {amount: 5})
    with refused(f"status.used.{amount}", "on this card"):
        card.write(a_status(first, taking(amount, 1, "b")))


def test_a_holder_of_nothing_but_memory_can_join_where_all_cores_are_taken(card: Card) -> None:
    first = a_holder("a", 1024, 100)
    card.held_by(first)
    card.write(a_status(first, a_holder("b", 1024, 0)))
    assert card.pods() == ["a", "b"]


@pytest.mark.parametrize("first_is_exclusive", [True, False], ids=["exclusive first", "exclusive second"])
def test_an_exclusive_holder_and_another_are_refused(card: Card, first_is_exclusive: bool) -> None:
    first = a_holder("a", 1024, exclusive=first_is_exclusive)
    card.held_by(first)
    with refused("status.holders", ALONE):
        card.write(a_status(first, a_holder("b", 1024, exclusive=not first_is_exclusive)))


def test_an_exclusive_holder_can_be_followed_by_others(card: Card) -> None:
    card.held_by(a_holder("a", exclusive=True))
    card.write(a_status(a_holder("b"), a_holder("c")))
    assert card.pods() == ["b", "c"]


def test_a_pod_cannot_hold_a_card_twice(card: Card) -> None:
    first = a_holder("a", 1024)
    card.held_by(first)
    with refused("status.holders[1]", 'Duplicate value: {"podUID":"uid-of-a"}'):
        card.patch_status(
            {"op": "add", "path": "/status/holders/-", "value": first},
            {"op": "replace", "path": "/status/used", "value": total(first, first)},
        )


def test_a_pod_of_the_same_name_can_hold_the_card_too(card: Card) -> None:
    card.held_by(a_holder("a"), a_holder("a", podUID="uid-of-the-one-before", state="releasing"))
    assert card.pods() == ["a", "a"]


def test_a_container_cannot_have_two_shares_of_a_card(card: Card) -> None:
    card.create()
    share = {"name": "main", "memoryMiB": 1, "cores": 1}
    with refused("status.holders[0].containers[1]", 'Duplicate value: {"name":"main"}'):
        card.write(a_status(a_holder("a", 1024, 10, containers=[share, share])))


@pytest.mark.parametrize("amount", ["memoryMiB", "cores"])
def test_a_container_cannot_have_more_than_its_pod(card: Card, amount: str) -> None:
    card.create()
    share: Json = {"name": "main", "memoryMiB": 1024, "cores": 10}
    with refused("status.holders[0].containers", "a container has more of the card than its pod"):
        card.write(a_status(a_holder("a", 1024, 10, containers=[share | {amount: share[amount] + 1}])))


SEAT = {"kind": "workload", "name": "job", "uid": "uid-of-job", "member": "main/0", "cards": 1}


@pytest.mark.parametrize(
    "more",
    [
        {"podUID": "seat-1", "state": "reserved"},
        {"podUID": "seat-1", "seat": SEAT},
    ],
    ids=["no word for whom", "not reserved"],
)
def test_a_seat_is_reserved_and_says_for_whom(card: Card, more: Json) -> None:
    card.create()
    with refused("status.holders[0].podUID", "a holder whose UID begins with seat- is no pod"):
        card.write(a_status(a_holder("a", 1024, 10, **more)))


def test_a_seat_counts_like_any_holder_and_a_pods_share_takes_its_place(card: Card) -> None:
    seat = a_holder("job", CAPACITY["memoryMiB"], podUID="seat-1", state="reserved", seat=SEAT)
    card.held_by(seat)
    with refused("status.used.memoryMiB", "on this card"):
        card.write(a_status(seat, a_holder("other", 1)))
    card.write(a_status(a_holder("a", CAPACITY["memoryMiB"])))
    assert card.pods() == ["a"]


def test_256_seats_with_64_containers_each_fit(card: Card) -> None:
    containers = [{"name": f"container-{i}", "memoryMiB": 1, "cores": 0} for i in range(64)]
    card.create(card.manifest(capacity=CAPACITY | {"number": 1024}))
    longest = SEAT | {"name": "j" * 253, "member": "m" * 191}
    seat: dict[str, Any] = {"state": "reserved", "seat": longest, "containers": containers}
    card.write(a_status(*(a_holder("job", 1, podUID=f"seat-{i:059}", **seat) for i in range(256))))
    assert len(card.pods()) == 256


def test_containers_that_run_one_after_the_other_can_add_up_to_more_than_the_pod(card: Card) -> None:
    containers = [{"name": name, "memoryMiB": 1024, "cores": 10} for name in ("init", "main")]
    card.held_by(a_holder("a", 1024, 10, containers=containers))
    assert card.pods() == ["a"]


def test_the_status_cannot_be_removed_by_a_json_patch(card: Card) -> None:
    card.held_by(a_holder("a"))
    with refused("status", FOREVER):
        card.patch_status({"op": "remove", "path": "/status"})


def test_the_status_cannot_be_set_to_null(card: Card) -> None:
    card.held_by(a_holder("a"))
    with refused("status", FOREVER):
        card.write(None)


def test_the_status_cannot_be_removed_by_replacing_it(card: Card) -> None:
    card.held_by(a_holder("a"))
    without_status = {key: value for key, value in card.read().items() if key != "status"}
    with refused("status", FOREVER):
        card.replace(without_status, "/status")
    assert card.pods() == ["a"]


def test_replacing_the_card_leaves_its_status_alone(card: Card) -> None:
    card.held_by(a_holder("a"))
    card.replace(card.read() | {"status": a_status()})
    assert card.pods() == ["a"]


@pytest.mark.parametrize("part", ["phase", "used", "holders"])
def test_no_part_of_the_account_can_be_left_out(card: Card, part: str) -> None:
    card.held_by(a_holder("a"))
    with refused(f"status.{part}", "Required value"):
        card.patch_status({"op": "remove", "path": f"/status/{part}"})


def test_a_held_card_stays_on_its_node(card: Card) -> None:
    card.held_by(a_holder("a"), a_holder("b"))
    with refused("spec.nodeName", "nodeName cannot change while pods hold the card, now 2; wait until they have left"):
        card.patch_spec(nodeName="another-node")


def test_a_held_card_can_change_in_other_ways(card: Card) -> None:
    card.held_by(a_holder("a"))
    card.patch_spec(index=0, healthy=False)
    assert card.read()["spec"]["index"] == 0


@pytest.mark.parametrize("had_a_status", [True, False])
def test_a_free_card_can_move_to_another_node(card: Card, had_a_status: bool) -> None:
    card.create()
    if had_a_status:
        card.write(a_status())
    card.patch_spec(nodeName="another-node")
    assert card.read()["spec"]["nodeName"] == "another-node"


@pytest.mark.parametrize("uuid", ["GPU-other", "GPU-0000", "MIG-1.2"])
def test_a_card_under_a_name_that_is_not_its_uuid_is_refused(card: Card, uuid: str) -> None:
    message = f"the name of a card is its UUID in lower case; create it as {uuid.lower()}"
    with refused("spec.uuid", message):
        card.create(card.manifest(uuid=uuid))


def test_a_card_keeps_the_spelling_of_its_uuid(card: Card) -> None:
    card.create()
    with refused("spec.uuid", "a card keeps its UUID, in the same spelling"):
        card.patch_spec(uuid=card.uuid.lower())


def test_a_uuid_that_can_never_be_a_name_is_refused(card: Card) -> None:
    with refused("spec.uuid", "should match"):
        card.create(card.manifest(uuid="GPU_1"))


def test_a_removal_with_the_wrong_index_is_refused_although_the_sums_are_right(card: Card) -> None:
    first, second = a_holder("a", 1024), a_holder("b", 1024)
    card.held_by(first, second)
    with pytest.raises(RequestFailed, match=r"^422: "):
        card.patch_status(
            {"op": "test", "path": "/status/holders/0/podUID", "value": second["podUID"]},
            {"op": "remove", "path": "/status/holders/0"},
            {"op": "replace", "path": "/status/used", "value": total(first)},
        )
    assert card.pods() == ["a", "b"]


def test_entries_and_removals_go_in_one_patch(card: Card) -> None:
    first, second, third = a_holder("a", 30000), a_holder("b", 1024), a_holder("c", 30000)
    card.held_by(first, second)
    card.patch_status(
        {"op": "test", "path": "/status/holders/0/podUID", "value": first["podUID"]},
        {"op": "remove", "path": "/status/holders/0"},
        {"op": "add", "path": "/status/holders/-", "value": third},
        {"op": "replace", "path": "/status/used", "value": total(second, third)},
    )
    assert card.pods() == ["b", "c"]


def test_of_two_writers_that_read_the_same_card_the_second_is_refused(card: Card) -> None:
    card.held_by(a_holder("a", 1024))

    def enter(holder: Json, *known: Json) -> None:
        card.patch_status(
            {"op": "add", "path": "/status/holders/-", "value": holder},
            {"op": "replace", "path": "/status/used", "value": total(holder, *known)},
        )

    enter(a_holder("b", 2048), a_holder("a", 1024))
    with refused("status.used.memoryMiB", "the total says 5120 MiB, the holders add up to 7168 MiB"):
        enter(a_holder("c", 4096), a_holder("a", 1024))
    enter(a_holder("c", 4096), a_holder("a", 1024), a_holder("b", 2048))
    assert card.pods() == ["a", "b", "c"]


def test_256_pods_can_hold_a_card_and_257_cannot(card: Card) -> None:
    card.create(card.manifest(capacity=CAPACITY | {"number": 1024}))
    holders = [a_holder(f"pod-{i}", podUID=f"{i:064}") for i in range(257)]
    card.write(a_status(*holders[:256]))
    assert len(card.pods()) == 256
    with refused("status.holders", "must have at most 256 items"):
        card.write(a_status(*holders))


def test_a_holder_with_64_containers_fits_256_times(card: Card) -> None:
    containers = [{"name": f"container-{i}", "memoryMiB": 1, "cores": 0} for i in range(64)]
    card.create(card.manifest(capacity=CAPACITY | {"number": 1024}))
    card.write(a_status(*(a_holder(f"pod-{i}", 1, containers=containers) for i in range(256))))
    assert len(card.pods()) == 256


def test_managed_fields_do_not_grow_with_the_holders(card: Card) -> None:
    def fields() -> list[Json]:
        return [manager["fieldsV1"] for manager in card.read()["metadata"]["managedFields"]]

    card.held_by(a_holder("a"))
    with_one_holder = fields()
    card.write(a_status(*(a_holder(f"pod-{i}") for i in range(10))))
    assert fields() == with_one_holder


def a_claim(pod: str, memory_mib: int, **more: Any) -> Json:
    holder = a_holder(pod, memory_mib)
    del holder["state"], holder["attempt"]
    return {**holder, "cards": 1, "victims": ["uid-of-a"], "deadline": "2030-01-01T00:00:00Z", **more}


def test_a_claim_on_a_full_card_is_listed_and_not_counted(card: Card) -> None:
    card.held_by(a_holder("a", 40960))
    card.patch_status({"op": "add", "path": "/status/claims", "value": [a_claim("b", 40960)]})
    status = card.read()["status"]
    assert status["used"]["memoryMiB"] == 40960
    assert status["claims"] == [a_claim("b", 40960)]


def test_a_pod_claims_a_card_once(card: Card) -> None:
    card.held_by(a_holder("a", 40960))
    with refused("status.claims[1]", "Duplicate value"):
        card.write(a_status(a_holder("a", 40960), claims=[a_claim("b", 1), a_claim("b", 2)]))


def test_a_claim_needs_a_deadline(card: Card) -> None:
    card.held_by(a_holder("a", 40960))
    claim = a_claim("b", 40960)
    del claim["deadline"]
    with refused("status.claims[0].deadline", "Required value"):
        card.write(a_status(a_holder("a", 40960), claims=[claim]))


def test_a_claim_becomes_a_holder_when_its_victim_has_left_and_not_before(card: Card) -> None:
    card.held_by(a_holder("a", 40960))
    card.patch_status({"op": "add", "path": "/status/claims", "value": [a_claim("b", 40960)]})
    reserved = a_holder("b", 40960, state="reserved", deadline="2030-01-01T00:00:00Z")
    with refused("status.used.memoryMiB", "on this card"):
        card.write(a_status(a_holder("a", 40960), reserved))
    card.write(a_status(reserved))
    assert card.pods() == ["b"]
