"""Which cards are out, and that each comes back when it should and not before."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.devices.health import APPLICATION_XIDS, LOST, CardHealth, HealthPolicy, Remembered
from gpuledger.agent.devices.source import Device, Fault, Snapshot
from gpuledger.model.failure import Failure, FaultClass

QUIET_S = 300.0
POLICY = HealthPolicy(fault_quiet_s=QUIET_S)
A = Device("GPU-a", 0, "A100", 40_000)
B = Device("GPU-b", 1, "A100", 40_000)
FALLEN_OFF = Fault("GPU-a", 79, "Xid 79")
CONTAINED = Fault("GPU-a", 94, "Xid 94")
START = datetime(2026, 1, 1, tzinfo=UTC)


def mig(uuid: str, parent: Device = A) -> Device:
    return Device(uuid, 64, "1g", 10_000, mode="mig", parent_uuid=parent.uuid, number=1)


def wall(now_s: float) -> datetime:
    """Return the time of day at a moment of these tests' clock."""
    return START + timedelta(seconds=min(now_s, 1e8))


def take(health: CardHealth, fault: Fault, now_s: float) -> bool:
    return health.take(fault, now_s, wall(now_s))


def faults(health: CardHealth, now_s: float, *devices: Device) -> dict[str, str]:
    return {device.uuid: device.fault for device in health.judge(Snapshot(devices), now_s, wall(now_s)).devices}


def test_a_card_is_out_while_its_probe_fails() -> None:
    health = CardHealth(POLICY)
    assert faults(health, 0.0, A, replace(B, fault="ECC")) == {"GPU-a": "", "GPU-b": "ECC"}
    assert faults(health, 1.0, A, B) == {"GPU-a": "", "GPU-b": ""}


def test_a_card_with_a_critical_fault_comes_back_after_the_last_one_has_been_quiet_long_enough() -> None:
    health = CardHealth(POLICY)
    assert take(health, CONTAINED, 0.0)
    assert take(health, replace(CONTAINED, text="Xid 94 again"), 100.0)
    assert faults(health, QUIET_S + 99.9, A, B) == {"GPU-a": "Xid 94 again", "GPU-b": ""}
    assert health.next_return_s() == QUIET_S + 100.0
    assert faults(health, QUIET_S + 100.0, A, B) == {"GPU-a": "", "GPU-b": ""}
    assert health.next_return_s() is None


def test_a_card_whose_probe_fails_when_its_fault_is_over_stays_out() -> None:
    health = CardHealth(POLICY)
    take(health, CONTAINED, 0.0)
    assert faults(health, QUIET_S, replace(A, fault="ECC")) == {"GPU-a": "ECC"}


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_a_programs_error_puts_no_card_out(xid: int) -> None:
    health = CardHealth(POLICY)
    assert not take(health, Fault("GPU-a", xid, "a page fault"), 0.0)
    assert faults(health, 0.0, A) == {"GPU-a": ""}


def test_more_xids_can_be_ignored() -> None:
    health = CardHealth(POLICY.ignoring([79]))
    assert not take(health, FALLEN_OFF, 0.0)
    assert not take(health, Fault("GPU-a", 31, ""), 0.0)
    assert take(health, Fault("GPU-a", 48, ""), 0.0)


def test_a_fault_without_an_xid_is_a_reason_to_look_and_lasts_as_long_as_the_probe_fails() -> None:
    health = CardHealth(POLICY)
    assert take(health, Fault("GPU-a", 0, "does not answer"), 0.0)
    assert faults(health, 0.0, replace(A, fault="does not answer")) == {"GPU-a": "does not answer"}
    assert faults(health, 1.0, A) == {"GPU-a": ""}


def test_a_fault_without_a_card_is_one_of_every_card() -> None:
    health = CardHealth(POLICY)
    take(health, Fault("", 999, "Xid 999"), 0.0)
    assert faults(health, 1.0, A, B) == {"GPU-a": "Xid 999", "GPU-b": "Xid 999"}


def test_a_fault_of_a_card_is_one_of_its_mig_devices_and_not_the_other_way_round() -> None:
    health = CardHealth(POLICY)
    take(health, Fault("GPU-a", 94, "Xid 94"), 0.0)
    take(health, Fault("MIG-2", 95, "Xid 95"), 0.0)
    found = faults(health, 1.0, mig("MIG-1"), mig("MIG-2"), mig("MIG-3", parent=B))
    assert found == {"MIG-1": "Xid 94", "MIG-2": "Xid 95", "MIG-3": ""}


def test_a_card_that_is_no_longer_listed_is_shown_as_lost_until_it_is_back() -> None:
    health = CardHealth(POLICY)
    faults(health, 0.0, A, B)
    for now_s in (1.0, 1e9):
        assert faults(health, now_s, B) == {"GPU-a": LOST, "GPU-b": ""}
    assert faults(health, 2e9, A, B) == {"GPU-a": "", "GPU-b": ""}


def test_a_lost_card_keeps_what_it_was_and_its_place() -> None:
    health = CardHealth(POLICY)
    faults(health, 0.0, A, B)
    found = health.judge(Snapshot((B,)), 1.0, wall(1.0))
    assert found.devices == (replace(A, fault=LOST, failure=Failure(FaultClass.LOST, "2026-01-01T00:00:01Z")), B)


def test_cards_that_were_cut_or_put_together_again_are_not_lost() -> None:
    health = CardHealth(POLICY)
    faults(health, 0.0, A, B)
    assert faults(health, 1.0, mig("MIG-1"), mig("MIG-2"), B) == {"MIG-1": "", "MIG-2": "", "GPU-b": ""}
    assert faults(health, 2.0, mig("MIG-2"), B) == {"MIG-2": "", "GPU-b": ""}
    assert faults(health, 3.0, A, B) == {"GPU-a": "", "GPU-b": ""}


def test_mig_devices_of_a_lost_card_are_lost() -> None:
    health = CardHealth(POLICY)
    faults(health, 0.0, mig("MIG-1"), B)
    assert faults(health, 1.0, B) == {"MIG-1": LOST, "GPU-b": ""}


def test_a_driver_that_is_back_has_every_card_probed_anew_and_the_lost_ones_are_still_lost() -> None:
    health = CardHealth(POLICY)
    faults(health, 0.0, A, B)
    take(health, FALLEN_OFF, 0.0)
    health.driver_gone()
    assert health.next_return_s() is None
    assert faults(health, 1.0, A) == {"GPU-a": "", "GPU-b": LOST}


def failure(health: CardHealth, now_s: float, device: Device = A) -> Failure | None:
    return health.judge(Snapshot((device, B)), now_s, wall(now_s)).devices[0].failure


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 119, 120])
def test_a_fault_that_only_a_reset_mends_is_never_over_by_itself(xid: int) -> None:
    health = CardHealth(POLICY)
    take(health, Fault("GPU-a", xid, f"Xid {xid}"), 0.0)
    assert health.next_return_s() is None
    for now_s in (1.0, QUIET_S, 1e7):
        assert faults(health, now_s, A, B) == {"GPU-a": f"Xid {xid}", "GPU-b": ""}


def test_a_card_is_set_up_anew_with_its_driver() -> None:
    health = CardHealth(POLICY)
    take(health, FALLEN_OFF, 0.0)
    health.driver_gone()
    assert faults(health, 1.0, A) == {"GPU-a": ""}


def test_a_card_that_the_driver_lists_again_was_set_up_anew() -> None:
    health = CardHealth(POLICY)
    faults(health, 0.0, A, B)
    take(health, FALLEN_OFF, 1.0)
    assert faults(health, 2.0, B) == {"GPU-a": LOST, "GPU-b": ""}
    assert faults(health, 3.0, A, B) == {"GPU-a": "", "GPU-b": ""}


def test_a_card_is_back_when_its_driver_no_longer_asks_for_the_reset_that_it_has_asked_for() -> None:
    health, asks, content = CardHealth(POLICY), replace(A, needs_reset=True), replace(A, needs_reset=False)
    take(health, Fault("GPU-a", 95, "Xid 95"), 0.0)
    assert faults(health, 1.0, content)["GPU-a"] == "Xid 95"  # it may not have asked yet
    assert faults(health, 2.0, asks)["GPU-a"] == "Xid 95"
    assert faults(health, 3.0, content)["GPU-a"] == ""


def test_a_person_ends_the_faults_that_began_before_and_no_later_ones() -> None:
    health = CardHealth(POLICY)
    take(health, FALLEN_OFF, 10.0)
    take(health, Fault("GPU-b", 95, "Xid 95"), 30.0)
    health.repaired(wall(20.0))
    assert faults(health, 40.0, A, B) == {"GPU-a": "", "GPU-b": "Xid 95"}


def test_the_next_agent_knows_a_fault_that_needs_a_reset_and_when_each_began() -> None:
    health = CardHealth(POLICY)
    take(health, FALLEN_OFF, 0.0)
    take(health, Fault("GPU-b", 94, "Xid 94"), 5.0)
    faults(health, 6.0, A, B)
    after = CardHealth(POLICY, health.remembered())
    assert faults(after, 100.0, A, replace(B, fault="ECC")) == {"GPU-a": "Xid 79", "GPU-b": "ECC"}
    assert after.remembered() == (
        Remembered("GPU-a", Failure(FaultClass.LOST, "2026-01-01T00:00:00Z"), "Xid 79"),
        Remembered("GPU-b", Failure(FaultClass.OTHER, "2026-01-01T00:01:40Z")),
    )


def test_a_failure_began_when_its_class_did_however_often_it_is_reported() -> None:
    health = CardHealth(POLICY)
    for now_s in (0.0, 50.0, 100.0):
        take(health, CONTAINED, now_s)
        assert failure(health, now_s) == Failure(FaultClass.CONTAINED, "2026-01-01T00:00:00Z")
    take(health, FALLEN_OFF, 110.0)
    take(health, CONTAINED, 120.0)
    assert failure(health, 120.0) == Failure(FaultClass.LOST, "2026-01-01T00:01:50Z")
    assert faults(health, 120.0, A)["GPU-a"] == "Xid 79"


@pytest.mark.parametrize("xids", [(48, 94), (94, 48), (94, 48, 94, 48)])
def test_a_contained_memory_error_is_no_worse_for_being_one_of_double_bit_ecc(xids: tuple[int, ...]) -> None:
    health = CardHealth(POLICY)
    for xid in xids:
        take(health, Fault("GPU-a", xid, f"Xid {xid}"), 0.0)
    assert failure(health, 1.0) == Failure(FaultClass.CONTAINED, "2026-01-01T00:00:00Z")
    assert faults(health, QUIET_S, A)["GPU-a"] == ""


def test_a_fault_that_names_no_card_says_nothing_of_programs() -> None:
    health = CardHealth(POLICY)
    take(health, Fault("", 79, "Xid 79"), 0.0)
    assert failure(health, 1.0) == Failure(FaultClass.OTHER, "2026-01-01T00:00:00Z")


def test_the_worse_of_a_probe_and_a_report_is_shown() -> None:
    health = CardHealth(POLICY)
    take(health, CONTAINED, 0.0)
    lost = replace(A, fault="GPU is lost", failure=Failure(FaultClass.LOST, ""))
    assert failure(health, 1.0, lost) == Failure(FaultClass.LOST, "2026-01-01T00:00:01Z")
    assert failure(health, 2.0) == Failure(FaultClass.CONTAINED, "2026-01-01T00:00:00Z")


STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 200.0),  # seconds since the step before
        st.sampled_from(["GPU-a", "GPU-b", ""]) | st.none(),  # a fault of which card
        st.sets(st.sampled_from([A, B])),  # who is listed
        st.sets(st.sampled_from(["GPU-a", "GPU-b"])),  # whose probe fails
    )
)


@given(STEPS)
def test_a_card_is_out_exactly_while_there_is_a_reason(
    steps: list[tuple[float, str | None, set[Device], set[str]]],
) -> None:
    """By an arithmetic of its own: the times of all faults, failed probes too, and the cards that were ever listed."""
    health, now_s = CardHealth(POLICY), 0.0
    times: dict[str, list[float]] = {"GPU-a": [], "GPU-b": []}
    failed: set[str] = set()  # whose probe failed when it was last listed
    returned: dict[str, float] = {}  # when it passed again after that
    seen: set[str] = set()
    for pause_s, fault, listed, failing in steps:
        now_s += pause_s
        if fault is not None:
            take(health, Fault(fault, 94, "Xid 94"), now_s)
            for uuid in [fault] if fault else times:
                times[uuid].append(now_s)
        devices = [replace(device, fault="probe") if device.uuid in failing else device for device in listed]
        found = faults(health, now_s, *devices)
        present = {device.uuid for device in listed}
        seen |= present
        for uuid in present & failing:
            if uuid in returned and now_s < returned[uuid] + QUIET_S:
                times[uuid].append(now_s)
        returned |= dict.fromkeys(failed & present - failing, now_s)
        failed = (failed - present) | (present & failing)
        assert set(found) == seen
        for uuid in seen:
            recent = any(now_s < at + QUIET_S for at in times[uuid])
            assert bool(found[uuid]) == (uuid not in present or uuid in failing or recent)


def test_a_card_whose_probe_fails_time_and_again_does_not_come_and_go() -> None:
    """The first time it is back at once; whoever fails again soon has to be quiet for as long as after a fault."""
    health = CardHealth(HealthPolicy(fault_quiet_s=300))
    good = Device("GPU-1", 0, "A100", 81920)
    bad = replace(good, fault="it does not answer")

    def looks(device: Device, now_s: float) -> str:
        return faults(health, now_s, device)[device.uuid]

    assert [looks(bad, 0), looks(good, 30)] == ["it does not answer", ""]
    assert [looks(device, 60 + 30 * n) for n, device in enumerate([bad, good] * 3)] == ["it does not answer"] * 6
    assert looks(good, 60 + 30 * 4 + 299) == "it does not answer"
    assert looks(good, 60 + 30 * 4 + 300) == ""
