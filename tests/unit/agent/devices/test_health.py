"""Which cards are out, and that each comes back when it should and not before."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.devices.source import Device, Fault, Snapshot
from gpuledger.agent.devices.watcher import APPLICATION_XIDS, LOST, CardHealth, HealthPolicy

QUIET_S = 300.0
POLICY = HealthPolicy(fault_quiet_s=QUIET_S)
A = Device("GPU-a", 0, "A100", 40_000)
B = Device("GPU-b", 1, "A100", 40_000)
FALLEN_OFF = Fault("GPU-a", 79, "Xid 79")


def mig(uuid: str, parent: Device = A) -> Device:
    return Device(uuid, 64, "1g", 10_000, mode="mig", parent_uuid=parent.uuid, number=1)


def faults(health: CardHealth, now_s: float, *devices: Device) -> dict[str, str]:
    return {device.uuid: device.fault for device in health.judge(Snapshot(devices), now_s).devices}


def test_a_card_is_out_while_its_probe_fails() -> None:
    health = CardHealth(POLICY)
    assert faults(health, 0.0, A, replace(B, fault="ECC")) == {"GPU-a": "", "GPU-b": "ECC"}
    assert faults(health, 1.0, A, B) == {"GPU-a": "", "GPU-b": ""}


def test_a_card_with_a_critical_fault_comes_back_after_the_last_one_has_been_quiet_long_enough() -> None:
    health = CardHealth(POLICY)
    assert health.take(FALLEN_OFF, 0.0)
    assert health.take(replace(FALLEN_OFF, text="Xid 79 again"), 100.0)
    assert faults(health, QUIET_S + 99.9, A, B) == {"GPU-a": "Xid 79 again", "GPU-b": ""}
    assert health.next_return_s() == QUIET_S + 100.0
    assert faults(health, QUIET_S + 100.0, A, B) == {"GPU-a": "", "GPU-b": ""}
    assert health.next_return_s() is None


def test_a_card_whose_probe_fails_when_its_fault_is_over_stays_out() -> None:
    health = CardHealth(POLICY)
    health.take(FALLEN_OFF, 0.0)
    assert faults(health, QUIET_S, replace(A, fault="ECC")) == {"GPU-a": "ECC"}


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_a_programs_error_puts_no_card_out(xid: int) -> None:
    health = CardHealth(POLICY)
    assert not health.take(Fault("GPU-a", xid, "a page fault"), 0.0)
    assert faults(health, 0.0, A) == {"GPU-a": ""}


def test_more_xids_can_be_ignored() -> None:
    health = CardHealth(POLICY.ignoring([79]))
    assert not health.take(FALLEN_OFF, 0.0)
    assert not health.take(Fault("GPU-a", 31, ""), 0.0)
    assert health.take(Fault("GPU-a", 48, ""), 0.0)


def test_a_fault_without_an_xid_is_a_reason_to_look_and_lasts_as_long_as_the_probe_fails() -> None:
    health = CardHealth(POLICY)
    assert health.take(Fault("GPU-a", 0, "does not answer"), 0.0)
    assert faults(health, 0.0, replace(A, fault="does not answer")) == {"GPU-a": "does not answer"}
    assert faults(health, 1.0, A) == {"GPU-a": ""}


def test_a_fault_without_a_card_is_one_of_every_card() -> None:
    health = CardHealth(POLICY)
    health.take(Fault("", 999, "Xid 999"), 0.0)
    assert faults(health, 1.0, A, B) == {"GPU-a": "Xid 999", "GPU-b": "Xid 999"}


def test_a_fault_of_a_card_is_one_of_its_mig_devices_and_not_the_other_way_round() -> None:
    health = CardHealth(POLICY)
    health.take(Fault("GPU-a", 95, "Xid 95"), 0.0)
    health.take(Fault("MIG-2", 94, "Xid 94"), 0.0)
    found = faults(health, 1.0, mig("MIG-1"), mig("MIG-2"), mig("MIG-3", parent=B))
    assert found == {"MIG-1": "Xid 95", "MIG-2": "Xid 94", "MIG-3": ""}


def test_a_card_that_is_no_longer_listed_is_shown_as_lost_until_it_is_back() -> None:
    health = CardHealth(POLICY)
    faults(health, 0.0, A, B)
    for now_s in (1.0, 1e9):
        assert faults(health, now_s, B) == {"GPU-a": LOST, "GPU-b": ""}
    assert faults(health, 2e9, A, B) == {"GPU-a": "", "GPU-b": ""}


def test_a_lost_card_keeps_what_it_was_and_its_place() -> None:
    health = CardHealth(POLICY)
    faults(health, 0.0, A, B)
    assert health.judge(Snapshot((B,)), 1.0).devices == (replace(A, fault=LOST), B)


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
    health.take(FALLEN_OFF, 0.0)
    health.driver_gone()
    assert health.next_return_s() is None
    assert faults(health, 1.0, A) == {"GPU-a": "", "GPU-b": LOST}


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
            health.take(Fault(fault, 79, "Xid 79"), now_s)
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
        return health.judge(Snapshot((device,)), now_s).devices[0].fault

    assert [looks(bad, 0), looks(good, 30)] == ["it does not answer", ""]
    assert [looks(device, 60 + 30 * n) for n, device in enumerate([bad, good] * 3)] == ["it does not answer"] * 6
    assert looks(good, 60 + 30 * 4 + 299) == "it does not answer"
    assert looks(good, 60 + 30 * 4 + 300) == ""
