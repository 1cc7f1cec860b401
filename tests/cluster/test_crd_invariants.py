"""What the API server refuses and accepts on a GPUAllocation, whoever writes it.

Each test has a card of its own on a real API server. A capacity here is 40960 MiB, 100 % and 10 slots.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.cluster import ALLOCATIONS, MERGE_PATCH, Connection, RequestFailed
from control_plane import ControlPlane

Json = dict[str, Any]


AMOUNTS = ("memoryMiB", "cores", "number")
CAPACITY = {"memoryMiB": 40960, "cores": 100, "number": 10}
FOREVER = "the status says who holds this card and cannot be removed; remove the holders one by one"
ALONE = "an exclusive holder has to be alone on the card; choose a card that no pod holds"

each_amount = pytest.mark.parametrize("amount", AMOUNTS)


def a_holder(pod: str, memory_mib: int = 0, cores: int = 0, number: int = 1, **more: Any) -> Json:
    return {
        "podUID": f"uid-of-{pod}",
        "namespace": "default",
        "pod": pod,
        "memoryMiB": memory_mib,
        "cores": cores,
        "number": number,
        "exclusive": False,
        "priority": 0,
        "containers": [{"name": "main", "memoryMiB": memory_mib, "cores": cores}],
        "state": "allocated",
        "attempt": "first",
        **more,
    }


def taking(amount: str, quantity: int, pod: str = "a") -> Json:
    """Return a holder that takes so much of one amount, and as little as can be of the others."""
    spelled = {"memoryMiB": "memory_mib", "cores": "cores", "number": "number"}
    return a_holder(pod, **{spelled[amount]: quantity})


def total(*holders: Json) -> Json:
    return {amount: sum(holder[amount] for holder in holders) for amount in AMOUNTS}


def a_status(*holders: Json, **lies: Any) -> Json:
    return {"phase": "Ready", "used": total(*holders), "holders": list(holders), **lies}


class Card:
    """One GPUAllocation, and the ways to write to it."""

    def __init__(self, plane: ControlPlane, connection: Connection, number: int) -> None:
        self._plane, self._connection = plane, connection
        self.uuid = f"GPU-{number:04}-A"
        self.name = self.uuid.lower()
        self.path = f"{ALLOCATIONS}/{self.name}"

    def manifest(self, **spec: Any) -> Json:
        return {
            "apiVersion": "gpuledger.dev/v1alpha1",
            "kind": "GPUAllocation",
            "metadata": {"name": self.name},
            "spec": {
                "uuid": self.uuid,
                "nodeName": f"node-of-{self.name}",
                "index": 3,
                "vendor": "nvidia",
                "model": "A100",
                "mode": "none",
                "numaNode": 1,
                "healthy": True,
                "capacity": CAPACITY,
                **spec,
            },
        }

    def create(self, manifest: Json | None = None) -> Card:
        self._connection.request("POST", ALLOCATIONS, manifest or self.manifest())
        return self

    def held_by(self, *holders: Json) -> Card:
        """Create the card with these holders."""
        self.create().write(a_status(*holders))
        return self

    def read(self) -> Json:
        return self._connection.request("GET", self.path)

    def pods(self) -> list[str]:
        return [holder["pod"] for holder in self.read()["status"]["holders"]]

    def table(self, *arguments: str) -> list[list[str]]:
        """Return what a person sees, in cells; no value in these tests has a space inside."""
        lines = self._plane.kubectl("get", "gpua", self.name, *arguments).splitlines()
        return [line.split() for line in lines]

    def write(self, status: Json | None) -> None:
        self.patch_status({"op": "add", "path": "/status", "value": status})

    def patch_status(self, *operations: Json) -> None:
        self._connection.request("PATCH", f"{self.path}/status", list(operations), "application/json-patch+json")

    def patch_spec(self, **spec: Any) -> None:
        self._connection.request("PATCH", self.path, {"spec": spec}, MERGE_PATCH)

    def replace(self, card: Json, endpoint: str = "") -> None:
        self._connection.request("PUT", self.path + endpoint, card)


@pytest.fixture(scope="module")
def connection(ledger: ControlPlane) -> Iterator[Connection]:
    opened = Connection(ledger)
    yield opened
    opened.close()


_numbers = itertools.count(1)


@pytest.fixture
def card(ledger: ControlPlane, connection: Connection) -> Card:
    """Return a card that does not exist yet, with a name that no other test uses."""
    return Card(ledger, connection, next(_numbers))


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


def test_kubectl_get_shows_the_account_of_a_card(card: Card) -> None:
    card.create().write(a_status(a_holder("a", 4096, 25), a_holder("b", 1024, 5), pods="default/a,default/b"))
    header, row = card.table()
    assert " ".join(header) == "NAME NODE INDEX MODEL USED-MIB TOTAL-MIB CORES SLOTS PODS PHASE AGE"
    values = [
        card.name,
        f"node-of-{card.name}",
        "3",
        "A100",
        "5120",
        "40960",
        "30",
        "2",
        "default/a,default/b",
        "Ready",
    ]
    assert row[:-1] == values


def test_the_wide_table_adds_uuid_and_numa_node(card: Card) -> None:
    card.held_by()
    header, row = card.table("-o", "wide")
    assert header[-3:] == ["AGE", "UUID", "NUMA"]
    assert row[-2:] == [card.uuid, "1"]


def test_the_cards_of_a_node_can_be_selected_by_field(card: Card, ledger: ControlPlane) -> None:
    card.create()
    names = ledger.kubectl("get", "gpua", f"--field-selector=spec.nodeName=node-of-{card.name}", "-o", "name")
    assert names.split() == [f"gpuallocation.gpuledger.dev/{card.name}"]


def test_kubectl_explain_tells_what_a_holder_is(ledger: ControlPlane) -> None:
    text = " ".join(ledger.kubectl("explain", "gpua.status.holders").split())
    assert "A pod that holds a share of the card. It counts in full, whatever its state." in text


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
