"""Claims, templates and classes as the API server shows them, read."""

from typing import Any

import pytest

from fakes.claims import a_claim_spec, a_resource_claim, a_template
from gpuledger.formats.resource_claims.claims import (
    DEVICE_CLASS,
    DRIVER,
    NO_CLAIM_OBJECTS,
    DeviceClass,
    OpaqueConfig,
    read_claim,
    read_class,
    read_spec,
    read_template,
)

Json = dict[str, Any]


def opaque(parameters: Any, driver: str = DRIVER, **fields: Any) -> Json:
    return {"opaque": {"driver": driver, "parameters": parameters}, **fields}


def test_equal_specs_are_one_object_in_whatever_order_their_fields_stand() -> None:
    devices = a_claim_spec()["devices"]
    turned = {"requests": [{"exactly": dict(reversed(devices["requests"][0]["exactly"].items())), "name": "gpu"}]}
    assert read_spec({"devices": devices}) is read_spec({"devices": turned})
    assert read_template(a_template()) is read_claim(a_resource_claim()).spec


def test_all_fields_of_a_request_are_read() -> None:
    exact = {
        "deviceClassName": DEVICE_CLASS,
        "selectors": [{"cel": {"expression": "true"}}],
        "allocationMode": "All",
        "count": 3,
        "capacity": {"requests": {"slots": "1", "memory": "4Gi"}},
        "adminAccess": True,
    }
    ((wish,),) = read_spec({"devices": {"requests": [{"name": "gpu", "exactly": exact}]}}).requests
    assert (wish.name, wish.device_class, wish.selectors) == ("gpu", DEVICE_CLASS, ("true",))
    assert (wish.mode, wish.count, wish.admin_access) == ("All", 3, True)
    assert wish.capacity == (("memory", "4Gi"), ("slots", "1"))


def test_alternatives_are_called_by_their_request_and_keep_their_order() -> None:
    first = [{"name": name, "deviceClassName": DEVICE_CLASS} for name in ("big", "small")]
    (wishes,) = read_spec({"devices": {"requests": [{"name": "gpu", "firstAvailable": first}]}}).requests
    assert [wish.name for wish in wishes] == ["gpu/big", "gpu/small"]


def test_constraints_tell_what_is_equal_and_what_differs() -> None:
    constraints = [
        {"matchAttribute": "resource.kubernetes.io/pcieRoot"},
        {"distinctAttribute": f"{DRIVER}/uuid", "requests": ["a", "b"]},
    ]
    found = read_spec({"devices": {"requests": [], "constraints": constraints}}).constraints
    assert [(each.attribute, each.distinct, each.requests) for each in found] == [
        ("resource.kubernetes.io/pcieRoot", False, ()),
        (f"{DRIVER}/uuid", True, ("a", "b")),
    ]


def test_only_our_drivers_configuration_is_kept() -> None:
    config = [opaque({"a": 1}, "nic.example.com"), opaque({"cores": 30}, requests=["gpu"])]
    found = read_spec({"devices": {"requests": [], "config": config}}).config
    assert found == (OpaqueConfig('{"cores":30}', ("gpu",)),)


def test_parameters_nested_beyond_what_can_be_written_again_count_as_unreadable_ones() -> None:
    deep: Any = 0
    for _ in range(900):
        deep = [deep]
    spec = {**a_claim_spec()["devices"], "config": [opaque({"models": deep}, requests=["gpu"])]}
    found = read_spec({"devices": spec})
    assert found.config == (OpaqueConfig("null", ("gpu",)),)
    assert len(found.requests) == 1


def test_a_claim_tells_whose_it_is_and_who_uses_it() -> None:
    stored = a_resource_claim("ours", "node-a", ["GPU-node-a-0"], ["a", "b"], owner="a")
    stored["metadata"] |= {"deletionTimestamp": "2030-01-01T00:00:00Z", "finalizers": ["x"], "resourceVersion": "7"}
    claim = read_claim(stored)
    assert (claim.namespace, claim.name, claim.uid, claim.resource_version) == ("default", "ours", "claim-ours", "7")
    assert (claim.owner, claim.reserved_for) == ("uid-a", ("uid-a", "uid-b"))
    assert (claim.node_name, claim.drivers, claim.finalizers) == ("node-a", frozenset({DRIVER}), ("x",))
    assert claim.is_allocated
    assert claim.is_being_deleted


def test_a_claim_with_another_drivers_devices_is_on_no_node_of_ours() -> None:
    stored = a_resource_claim()
    result = {"request": "nic", "driver": "nic.example.com", "pool": "pool-3", "device": "eth0"}
    stored["status"] = {"allocation": {"devices": {"results": [result]}}}
    claim = read_claim(stored)
    assert (claim.node_name, claim.drivers, claim.is_allocated) == ("", frozenset({"nic.example.com"}), True)


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}, {"allocation": {"devices": None}}])
def test_a_claim_without_an_allocation_has_nothing(status: Json | None) -> None:
    claim = read_claim({**a_resource_claim(), "status": status})
    assert (claim.is_allocated, claim.node_name, claim.reserved_for) == (False, "", ())


@pytest.mark.parametrize(
    "owners",
    [
        [{"kind": "Pod", "name": "a", "uid": "uid-a"}],
        [{"kind": "Job", "name": "a", "uid": "uid-a", "controller": True}],
        None,
    ],
)
def test_only_a_pod_that_controls_a_claim_owns_it(owners: Any) -> None:
    stored = a_resource_claim()
    stored["metadata"]["ownerReferences"] = owners
    assert read_claim(stored).owner == ""


@pytest.mark.parametrize("claim", [{}, {"metadata": {"name": "ours"}}, {"metadata": None}])
def test_what_is_no_claim_is_not_read_as_one(claim: Json) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError)):
        read_claim(claim)


def test_a_class_is_ours_by_its_name_or_by_what_it_chooses() -> None:
    by_driver = {"spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}
    assert read_class({"metadata": {"name": DEVICE_CLASS}}).is_ours
    assert read_class({"metadata": {"name": "big"}, **by_driver}).is_ours
    assert not read_class(
        {"metadata": {"name": "nic"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}
    ).is_ours
    configured = {
        "metadata": {"name": "big"},
        "spec": {"config": [opaque({"cores": 1}), opaque({}, "nic.example.com")]},
    }
    assert read_class(configured) == DeviceClass("big", (), (OpaqueConfig('{"cores":1}'),))


def test_without_objects_nothing_is_known() -> None:
    claim = read_claim(a_resource_claim())
    assert NO_CLAIM_OBJECTS.claim("default", "ours") is None
    assert NO_CLAIM_OBJECTS.template("default", "quarter") is None
    assert NO_CLAIM_OBJECTS.device_class(DEVICE_CLASS) is None
    assert NO_CLAIM_OBJECTS.holder_of(claim) == ""
