"""What pods ask for by ResourceClaims: alone, and beside their resources."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.objects import DIALECTS
from fakes.stored_claims import (
    a_claim,
    a_template,
    allocated,
    by_name,
    by_template,
    claiming,
    exactly,
    known,
    parameters,
)
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.resource_claims.names import DRIVER
from gpuledger.model.errors import BadInput
from gpuledger.model.request import Demand, Lifetime, PodRequest

Json = dict[str, Any]


def request_of(*requests: Json, **devices: Any) -> PodRequest:
    """Return what a pod with one claim asks for."""
    found = pod_request(
        claiming(by_template("card", "t")), DIALECTS, known(a_template("t", *requests, **devices), *CLASSES)
    )
    assert found is not None
    return found


def demand_of(*requests: Json, **devices: Any) -> Demand:
    (demand,) = request_of(*requests, **devices).shape
    return demand


def refusal(pod: Json, *objects: Json, holders: dict[str, str] | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        pod_request(pod, DIALECTS, known(*objects, holders=holders))
    return str(caught.value)


CLASSES: tuple[Json, ...] = (
    {
        "metadata": {"name": "quarters", "uid": "quarters"},
        "spec": {
            "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
            "config": [parameters(memoryPercent=25, cores=25)],
        },
    },
)


@pytest.mark.parametrize(
    ("request_", "config", "expected"),
    [
        (exactly(), [], Demand(1, exclusive=True)),
        (exactly(count=3), [], Demand(3, exclusive=True)),
        (exactly(memory="10Gi"), [], Demand(1, memory_mib=10240)),
        (exactly(memory="1"), [], Demand(1, memory_mib=1)),
        (exactly(memory="1500M"), [], Demand(1, memory_mib=1431)),
        (exactly(cores="30"), [], Demand(1, cores=30)),
        (exactly(memory="10Gi", cores="100"), [], Demand(1, memory_mib=10240, cores=100, exclusive=True)),
        (exactly(), [parameters(memoryMiB=2048)], Demand(1, memory_mib=2048)),
        (exactly(), [parameters(memoryPercent=25, cores=10)], Demand(1, memory_percent=25, cores=10)),
        (exactly(), [parameters(memoryPercent=100)], Demand(1, exclusive=True)),
        (exactly(memory="10Gi"), [parameters(memoryMiB=1, exclusive=True)], Demand(1, 10240, exclusive=True)),
        (exactly(), [parameters(exclusive=False)], Demand(1)),
        (exactly(), [parameters(memoryMiB=1), parameters(memoryMiB=2)], Demand(1, memory_mib=2)),
        (exactly(), [parameters(["other"], memoryMiB=1)], Demand(1, exclusive=True)),
        (exactly(deviceClassName="quarters"), [], Demand(1, memory_percent=25, cores=25)),
        (exactly(deviceClassName="quarters"), [parameters(cores=50)], Demand(1, memory_percent=25, cores=50)),
    ],
)
def test_amounts_are_the_requests_own_then_the_claims_configuration_then_the_classes(
    request_: Json, config: list[Json], expected: Demand
) -> None:
    found = demand_of(request_, config=config)
    same = ("cards", "memory_mib", "memory_percent", "cores", "exclusive")
    assert {name: getattr(found, name) for name in same} == {name: getattr(expected, name) for name in same}
    assert found.resource == DRIVER


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (exactly(memory="0"), "claim card, request gpu: memory: 0 is not between 1Mi and"),
        (exactly(memory="lots"), "claim card, request gpu: memory: 'lots' is not an amount"),
        (exactly(cores="150"), "claim card, request gpu: cores: 150 is more than 100 percent, which is a whole card"),
        (exactly(cores="0.5"), "claim card, request gpu: cores: 0.5 is not a whole number"),
        (exactly(capacity={"requests": {"slots": "2"}}), "claim card, request gpu: slots: a share takes one"),
        (exactly(capacity={"requests": {"speed": "2"}}), "claim card, request gpu: cards have no capacity speed"),
        (exactly(adminAccess=True), "claim card, request gpu: adminAccess is not given"),
        (exactly(allocationMode="Some"), "claim card, request gpu: allocationMode Some is not known"),
        (exactly(count=5000), "claim card, request gpu: no node has 5000 cards"),
        (exactly(deviceClassName="gone"), "claim card, request gpu: there is no DeviceClass gone"),
    ],
)
def test_what_a_request_can_not_have_is_refused_with_its_place(request_: Json, text: str) -> None:
    assert refusal(claiming(by_template("card", "t")), a_template("t", request_)).startswith(text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"memory": 1}, "the configuration has no field 'memory': there are memoryMiB, memoryPercent,"),
        ({"memoryMiB": "10Gi"}, "memoryMiB of the configuration is '10Gi': write a whole number from 1 to"),
        ({"memoryMiB": True}, "memoryMiB of the configuration is True"),
        ({"memoryMiB": 1, "memoryPercent": 1}, "memoryMiB and memoryPercent are two ways to say one amount"),
        ({"exclusive": "yes"}, "exclusive of the configuration is 'yes': write true or false"),
        ({"models": "A100"}, "models of the configuration is no list of words"),
        ({"models": ["x"] * 257}, "models of the configuration has more than 256 words"),
        ({"kind": "Shares"}, "the configuration has apiVersion 'gpuledger.dev/v1alpha1' and kind 'Shares': write"),
    ],
)
def test_a_configuration_that_can_not_be_read_is_refused_with_what_to_write(fields: Json, text: str) -> None:
    found = refusal(claiming(by_template("card", "t")), a_template("t", exactly(), config=[parameters(**fields)]))
    assert found.startswith(f"claim card, request gpu: {text}")


def test_a_configuration_chooses_cards() -> None:
    wanted = demand_of(exactly(), config=[parameters(models=["A100"], uuids=["GPU-1"], isolation=["mig"])]).wanted
    assert (wanted.use_models, wanted.use_uuids, wanted.modes) == (("A100",), ("GPU-1",), ("mig",))


def test_selectors_of_class_and_request_all_count_and_that_of_our_class_is_none() -> None:
    selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].index == 1'}}
    assert [test.text for test in demand_of(exactly(selectors=[selector])).wanted.tests] == [
        selector["cel"]["expression"]
    ]
    assert demand_of(exactly()).wanted.tests == ()


def test_a_selector_that_can_not_be_read_is_refused_with_its_place() -> None:
    selector = {"cel": {"expression": "device.driver =="}}
    found = refusal(claiming(by_template("card", "t")), a_template("t", exactly(selectors=[selector])))
    assert found.startswith("claim card, request gpu: selector: 1:")


def test_alternatives_are_in_the_order_of_preference_and_named_after_their_request() -> None:
    big = exactly("big", count=2)["exactly"] | {"name": "big"}
    small = exactly("small", memory="1Gi")["exactly"] | {"name": "small"}
    either = {"name": "gpu", "firstAvailable": [big, small]}
    found = request_of(either)
    assert [each.names for each in found.variants] == [("card/gpu/big",), ("card/gpu/small",)]
    assert [each.shape[0].cards for each in found.variants] == [2, 1]


def test_too_many_alternatives_are_refused() -> None:
    def either(name: str) -> Json:
        return {"name": name, "firstAvailable": [exactly()["exactly"] | {"name": f"a{n}"} for n in range(3)]}

    text = refusal(claiming(by_template("card", "t")), a_template("t", either("x"), either("y")))
    assert text == "claim card can be served in more than 8 ways: name fewer of them"


def test_constraints_concern_their_requests_and_those_of_two_claims_are_different_ones() -> None:
    same_root = [{"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["a"]}]
    objects = known(a_template("t", exactly("a"), exactly("b"), constraints=same_root))
    pod = claiming(by_template("one", "t"), by_template("two", "t"))
    found = pod_request(pod, DIALECTS, objects)
    assert found is not None
    rules = [demand.rules for demand in found.shape]
    assert [len(each) for each in rules] == [1, 0, 1, 0]
    assert rules[0] != rules[2]


def test_an_attribute_that_no_card_has_is_refused() -> None:
    text = refusal(
        claiming(by_template("card", "t")), a_template("t", exactly(), constraints=[{"matchAttribute": "x.org/y"}])
    )
    assert text.startswith(
        "claim card, request gpu: cards have no attribute x.org/y: there are gpu.gpuledger.dev/uuid,"
    )


def test_every_card_is_asked_for_by_the_mode_all() -> None:
    found = demand_of(exactly(allocationMode="All"))
    assert (found.every_card, found.whole) == (True, True)


# Where claims come from.


def test_a_claim_and_resources_are_one_request_claims_first() -> None:
    pod = claiming(by_template("card", "t"))
    pod["spec"]["containers"].append(
        {"name": "side", "image": "none", "resources": {"limits": {"nvidia.com/gpumem": "1000"}}}
    )
    found = pod_request(pod, DIALECTS, known(a_template("t", exactly(memory="1Gi"))))
    assert found is not None
    assert found.names == ("card/gpu", "side")


def test_where_claims_are_not_known_they_do_not_count() -> None:
    assert pod_request(claiming(by_template("card", "t")), DIALECTS) is None


def test_a_claim_is_held_from_the_first_init_container_on() -> None:
    init = [{"name": "load", "image": "none"}]
    found = pod_request(
        claiming(by_template("card", "t"), initContainers=init), DIALECTS, known(a_template("t", exactly()))
    )
    assert found is not None
    assert found.shape[0].lifetime is Lifetime.SIDECAR


def test_the_claim_that_was_made_counts_and_not_its_template() -> None:
    objects = known(a_template("t", exactly(memory="1Gi")), a_claim("made", exactly(memory="2Gi"), owner="pod"))
    found = pod_request(claiming(by_template("card", "t"), made={"card": "made"}), DIALECTS, objects)
    assert found is not None
    assert found.shape[0].memory_mib == 2048
    assert [(claim.object_name, claim.uid, claim.shared) for claim in found.claims] == [("made", "claim-made", False)]


@pytest.mark.parametrize(
    ("pod", "objects", "text"),
    [
        (
            claiming(by_template("card", "t")),
            (),
            "claim card: there is no ResourceClaimTemplate t in namespace default",
        ),
        (claiming(by_name("card", "c")), (), "claim card: there is no ResourceClaim c in namespace default"),
        (
            claiming(by_name("card", "c")),
            (a_claim("c", exactly(), owner="another"),),
            "claim card: ResourceClaim c was made for another pod",
        ),
        (
            claiming(by_name("card", "c")),
            (a_claim("c", exactly(), deletionTimestamp="2026-01-01T00:00:00Z"),),
            "claim card: ResourceClaim c is being deleted",
        ),
    ],
)
def test_a_claim_that_can_not_be_used_is_refused(pod: Json, objects: tuple[Json, ...], text: str) -> None:
    assert refusal(pod, *objects) == text


def test_a_claim_that_another_pod_holds_is_joined_on_its_node() -> None:
    stored = a_claim("ours", exactly(), status=allocated("node-1", "first"))
    found = pod_request(
        claiming(by_name("card", "ours"), uid="second"), DIALECTS, known(stored, holders={"claim-ours": "first"})
    )
    assert found is not None
    assert (found.shape, found.claims, found.joined_node) == ((), (), "node-1")


def test_who_holds_a_claim_asks_for_its_cards_and_so_does_who_finds_it_without_a_holder() -> None:
    stored = a_claim("ours", exactly(), status=allocated("node-1", "first"))
    for holders in ({"claim-ours": "first"}, {}):
        found = pod_request(claiming(by_name("card", "ours"), uid="first"), DIALECTS, known(stored, holders=holders))
        assert found is not None
        assert (len(found.shape), found.joined) == (1, ())
        assert found.claims[0].shared


def test_claims_that_are_on_two_nodes_can_not_be_joined() -> None:
    one = a_claim("one", exactly(), status=allocated("node-1", "a"))
    two = a_claim("two", exactly(), status=allocated("node-2", "b"))
    pod = claiming(by_name("x", "one"), by_name("y", "two"))
    pod["spec"]["containers"] = [
        {"name": name, "image": "none", "resources": {"claims": [{"name": name}]}} for name in ("x", "y")
    ]
    text = refusal(pod, one, two, holders={"claim-one": "a", "claim-two": "b"})
    assert text.startswith("claims x and y are allocated on different nodes, node-1 and node-2")


def test_a_pod_has_no_more_claims_than_can_be_looked_at() -> None:
    many = [by_template(f"c{number}", "t") for number in range(33)]
    assert refusal(claiming(*many), a_template("t", exactly())).startswith("the pod has more than 32 ResourceClaims")


# Containers.


def uses(*claims: Json, **containers: list[Json]) -> Json:
    """Return a pod whose containers use these claims."""
    pod = claiming(*claims)
    listed = [{"name": name, "image": "none", "resources": {"claims": used}} for name, used in containers.items()]
    return {**pod, "spec": {**pod["spec"], "containers": listed}}


TWO = a_template("two", exactly("a", memory="1Gi"), exactly("b", memory="1Gi"))
OURS = a_claim("ours", exactly())


@pytest.mark.parametrize(
    "pod",
    [
        uses(by_template("c", "two"), x=[{"name": "c"}], y=[{"name": "c"}]),
        uses(by_template("c", "two"), x=[{"name": "c", "request": "a"}], y=[{"name": "c", "request": "b"}]),
        uses(by_template("c", "two"), x=[{"name": "c", "request": "a"}, {"name": "c", "request": "b"}], y=[]),
        uses(by_template("c", "two"), by_template("d", "two"), x=[{"name": "c"}, {"name": "d"}]),
        uses(by_name("c", "ours"), by_template("d", "two"), x=[{"name": "c"}], y=[{"name": "d"}]),
    ],
)
def test_each_container_gets_one_device_of_ours(pod: Json) -> None:
    assert pod_request(pod, DIALECTS, known(TWO, OURS)) is not None


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (
            uses(by_template("c", "two"), x=[{"name": "c"}], y=[{"name": "c", "request": "a"}]),
            "container x uses requests of claims of which other containers use only some",
        ),
        (
            uses(by_name("c", "ours"), by_template("d", "two"), x=[{"name": "c"}, {"name": "d"}]),
            "container x uses a claim that pods share and another one",
        ),
    ],
)
def test_a_container_that_would_need_several_is_refused_before_it_is_placed(pod: Json, text: str) -> None:
    assert refusal(pod, TWO, OURS).startswith(text)


def test_a_container_asks_in_one_way() -> None:
    pod = claiming(by_template("card", "t"))
    pod["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
    text = refusal(pod, a_template("t", exactly()))
    assert text == "container main asks for GPUs by its resources and by a claim: let it ask in one way"


# Whatever users write.

QUANTITIES = st.sampled_from(["0", "1", "10Gi", "1e3", "0.5", "-1", "1m", "9" * 40, "10Ei", "x", ""])
FIELDS = st.dictionaries(
    st.sampled_from(["memoryMiB", "memoryPercent", "cores", "exclusive", "models", "uuids", "oneNUMANode", "z"]),
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=3),
    max_size=4,
)
REQUESTS = st.builds(
    lambda name, capacity, more: exactly(name, capacity={"requests": capacity}, **more),
    st.sampled_from(["a", "b", "gpu"]),
    st.dictionaries(st.sampled_from(["memory", "cores", "slots", f"{DRIVER}/memory", "x"]), QUANTITIES, max_size=3),
    st.fixed_dictionaries(
        {},
        optional={
            "count": st.integers(1, 10**9),
            "allocationMode": st.sampled_from(["All", "ExactCount"]),
            "adminAccess": st.booleans(),
            "deviceClassName": st.sampled_from(["gpu.gpuledger.dev", "nic", "gone"]),
            "tolerations": st.just([{"operator": "Exists"}]),
        },
    ),
)


@given(st.lists(REQUESTS, min_size=1, max_size=4), st.lists(FIELDS, max_size=2))
def test_whatever_a_claim_says_it_is_a_request_or_refused_with_a_sentence(
    requests: list[Json], config: list[Json]
) -> None:
    objects = known(a_template("t", *requests, config=[parameters(**each) for each in config]))
    names: tuple[str, ...] = ()
    with contextlib.suppress(BadInput):
        found = pod_request(claiming(by_template("card", "t")), DIALECTS, objects)
        names = found.names if found else ()
        assert found or all(each["exactly"].get("deviceClassName") == "nic" for each in requests)
    assert all(name.startswith("card/") for name in names)
