"""Pods' claims as requests: which are ours, whose they are, and what can't be had."""

from typing import Any

import pytest

from fakes.claims import OUR_CLASS, a_claim_spec, a_claiming_pod, a_resource_claim, a_template
from fakes.objects import DIALECTS, SHARE, a_container, a_pod_object
from gpuledger.formats.dialects.request import pod_request, too_many_containers
from gpuledger.formats.resource_claims.claims import MOST_CLAIMS, ListedClaims, claim_names, has_claims
from gpuledger.model.errors import BadInput
from gpuledger.model.request import JoinedClaim, Lifetime, PodClaim, PodRequest

Json = dict[str, Any]

NIC_CLASS: Json = {
    "metadata": {"name": "nic"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "nic.example.com"'}}]},
}
OTHERS = "gpuledger-all-drivers"


class Objects(ListedClaims):
    """What a cluster has, in which one profile serves the claims of other drivers, too."""

    def serves_other_drivers(self, scheduler_name: str) -> bool:
        """See ClaimObjects."""
        return scheduler_name == OTHERS


def request(
    pod: Json, *claims: Json, templates: Any = (), classes: Any = (OUR_CLASS,), **holders: str
) -> PodRequest | None:
    held = {f"claim-{name}": uid for name, uid in holders.items()}
    return pod_request(pod, DIALECTS, Objects(claims, templates, classes, held))


def refused(pod: Json, *claims: Json, **fields: Any) -> str:
    with pytest.raises(BadInput) as error:
        request(pod, *claims, **fields)
    return str(error.value)


def claimed(pod: Json, *claims: Json, **fields: Any) -> PodRequest:
    found = request(pod, *claims, **fields)
    assert found is not None
    return found


def test_a_template_is_read_before_its_claim_is_made() -> None:
    found = claimed(a_claiming_pod("a", template="quarter"), templates=[a_template()])
    assert found.names == ("gpu/gpu",)
    assert [(each.name, each.object_name, each.uid, each.shared) for each in found.claims] == [("gpu", "", "", False)]
    assert (found.shape[0].memory_mib, found.shape[0].cards) == (4_000, 1)


def test_a_claim_that_was_made_counts_before_its_template_which_may_have_changed() -> None:
    pod = a_claiming_pod("a", template="quarter", made="ours")
    found = claimed(pod, a_resource_claim(owner="a", memory="8000Mi"), templates=[a_template()])
    assert found.shape[0].memory_mib == 8_000
    assert [(each.object_name, each.uid, each.shared) for each in found.claims] == [("ours", "claim-ours", False)]


def test_a_claim_that_a_pod_names_is_shared() -> None:
    found = claimed(a_claiming_pod("a", named="ours"), a_resource_claim())
    assert [(each.object_name, each.uid, each.shared) for each in found.claims] == [("ours", "claim-ours", True)]


def test_a_claim_that_another_pod_holds_is_joined() -> None:
    stored = a_resource_claim("ours", "node-a", ["GPU-node-a-0"], ["first"])
    found = claimed(a_claiming_pod("a", named="ours"), stored, ours="uid-first")
    assert (found.names, found.claims) == ((), ())
    assert found.joined == (JoinedClaim("gpu", "ours", "claim-ours", "node-a"),)
    assert found.joined_node == "node-a"


def test_who_holds_a_claim_does_not_join_it() -> None:
    stored = a_resource_claim("ours", "node-a", ["GPU-node-a-0"], ["a"])
    found = claimed(a_claiming_pod("a", named="ours"), stored, ours="uid-a")
    assert (found.names, found.joined) == (("gpu/gpu",), ())


@pytest.mark.parametrize("owner", ["b", ""])
def test_a_claim_is_not_the_pods_that_was_made_for_another(owner: str) -> None:
    pod = a_claiming_pod("a", template="quarter", made="ours")
    assert refused(pod, a_resource_claim(owner=owner)) == "claim gpu: ResourceClaim ours was made for another pod"


def test_a_pod_can_not_name_what_was_made_for_another() -> None:
    said = refused(a_claiming_pod("a", named="ours"), a_resource_claim(owner="b"))
    assert said == "claim gpu: ResourceClaim ours was made for another pod"


def test_nobody_new_gets_a_claim_that_is_being_deleted() -> None:
    stored = a_resource_claim("ours", "node-a", ["GPU-node-a-0"], ["first"])
    stored["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    pod = a_claiming_pod("a", named="ours")
    assert refused(pod, stored) == "claim gpu: ResourceClaim ours is being deleted"
    bound = a_claiming_pod("a", named="ours", node_name="node-a")
    assert claimed(bound, stored).names == ("gpu/gpu",)


def test_what_is_missing_is_named() -> None:
    assert (
        refused(a_claiming_pod("a", named="ours")) == "claim gpu: there is no ResourceClaim ours in namespace default"
    )
    said = refused(a_claiming_pod("a", template="quarter"))
    assert said == "claim gpu: there is no ResourceClaimTemplate quarter in namespace default"
    said = refused(a_claiming_pod("a", template="quarter", made="ours"), templates=[a_template()])
    assert said.startswith("claim gpu: ResourceClaim ours, which was made for the pod, is not there")


def test_a_bound_pod_whose_claim_is_gone_is_read_by_its_template() -> None:
    bound = a_claiming_pod("a", template="quarter", made="ours", node_name="node-a")
    assert claimed(bound, templates=[a_template()]).names == ("gpu/gpu",)


def test_a_claim_that_asks_for_nothing_is_no_request() -> None:
    empty = {**a_resource_claim(), "spec": {"devices": {}}}
    pod = a_claiming_pod("a", named="ours")
    assert request(pod, empty) is None
    pod["spec"]["containers"] = [a_container("main", SHARE)]
    assert claimed(pod, empty).names == ("main",)


def test_claims_are_ignored_where_nothing_is_known_of_them() -> None:
    pod = a_claiming_pod("a", named="ours")
    assert has_claims(pod)
    assert pod_request(pod, DIALECTS) is None


def nic_claim(**fields: Any) -> Json:
    return a_resource_claim("nic", deviceClassName="nic", capacity={}, **fields)


def test_another_drivers_claim_is_refused_unless_the_profile_serves_it() -> None:
    pod = a_claiming_pod("a", named="nic")
    said = refused(pod, nic_claim(), classes=[OUR_CLASS, NIC_CLASS])
    assert said.startswith("claim gpu is of DeviceClass nic, which has no GPUs of gpu.gpuledger.dev")
    pod["spec"] |= {"schedulerName": OTHERS, "containers": [a_container("main", SHARE)]}
    found = claimed(pod, nic_claim(), classes=[OUR_CLASS, NIC_CLASS])
    assert (found.names, found.claims, found.joined) == (("main",), (), ())


def test_a_claim_of_a_class_that_is_not_there_is_refused_even_where_others_are_served() -> None:
    pod = a_claiming_pod("a", named="nic")
    pod["spec"]["schedulerName"] = OTHERS
    assert refused(pod, nic_claim()) == "claim gpu, request gpu: there is no DeviceClass nic"


def several(number: int) -> Json:
    pod = a_pod_object("a", {})
    pod["spec"]["resourceClaims"] = [{"name": f"c{n}", "resourceClaimName": f"ours-{n}"} for n in range(number)]
    return pod


def joined_on(*node_names: str) -> tuple[list[Json], dict[str, str]]:
    stored = [a_resource_claim(f"ours-{n}", node, ["GPU-1"], ["first"]) for n, node in enumerate(node_names)]
    return stored, {f"ours-{n}": "uid-first" for n in range(len(node_names))}


def test_claims_on_different_nodes_can_not_be_joined_by_one_pod() -> None:
    claims, holders = joined_on("node-a", "node-a")
    assert claimed(several(2), *claims, **holders).joined_node == "node-a"
    claims, holders = joined_on("node-a", "node-b")
    assert refused(several(2), *claims, **holders) == (
        "claims c0 and c1 are allocated on different nodes, node-a and node-b: wait until the other pods of one of "
        "them have ended"
    )


def test_more_claims_than_are_looked_up_are_refused() -> None:
    said = refused(several(MOST_CLAIMS + 1))
    assert said == f"the pod has more than {MOST_CLAIMS} ResourceClaims: spread them over several pods"


def test_more_entries_than_a_holder_has_room_for_are_refused() -> None:
    most = DIALECTS.most_containers
    requests = [{"name": f"r{n}", **a_claim_spec()["devices"]["requests"][0]} | {"name": f"r{n}"} for n in range(most)]
    claim = {**a_resource_claim(), "spec": {"devices": {"requests": requests}}}
    pod = a_claiming_pod("a", named="ours")
    assert len(claimed(pod, claim).names) == most
    pod["spec"]["containers"][0] = a_container("main", SHARE)
    assert refused(pod, claim) == too_many_containers(most)


def test_both_words_stand_in_one_request_claims_first() -> None:
    pod = a_claiming_pod("a", named="ours")
    pod["spec"]["containers"] = [a_container("plain", {}), a_container("main", SHARE)]
    found = claimed(pod, a_resource_claim(memory="8000Mi"))
    assert found.names == ("gpu/gpu", "main")
    assert [demand.memory_mib for demand in found.shape] == [8_000, 4_000]
    assert found.all_containers == ("plain", "main")


def test_a_container_asks_in_one_way() -> None:
    pod = a_claiming_pod("a", named="ours")
    pod["spec"]["containers"][0]["resources"] |= {"limits": dict(SHARE), "claims": [{"name": "gpu"}]}
    said = refused(pod, a_resource_claim())
    assert said == "container main asks for GPUs by its resources and by a claim: let it ask in one way"


def test_a_claim_is_held_from_the_first_init_container_on() -> None:
    pod = a_claiming_pod("a", named="ours")
    assert claimed(pod, a_resource_claim()).shape[0].lifetime is Lifetime.MAIN
    pod["spec"]["initContainers"] = [a_container("init", {})]
    assert claimed(pod, a_resource_claim()).shape[0].lifetime is Lifetime.SIDECAR


def choices(*names: str) -> Json:
    first = [{"name": name, **a_claim_spec()["devices"]["requests"][0]["exactly"]} for name in names]
    return {"devices": {"requests": [{"name": "gpu", "firstAvailable": first}]}}


def test_alternatives_follow_one_another_in_the_users_order() -> None:
    claim = {**a_resource_claim(), "spec": choices("big", "small")}
    found = claimed(a_claiming_pod("a", named="ours"), claim)
    assert [variant.names for variant in found.variants] == [("gpu/gpu/big",), ("gpu/gpu/small",)]
    assert all(isinstance(each, PodClaim) for variant in found.variants for each in variant.claims)


def test_a_pod_can_not_be_served_in_more_ways_than_are_tried() -> None:
    claims = [{**a_resource_claim(f"ours-{n}"), "spec": choices("a", "b", "c")} for n in range(2)]
    assert refused(several(2), *claims) == ("the pod's claims can be served in more than 8 ways: name fewer of them")
    claim = {**a_resource_claim("ours-0"), "spec": choices(*"abcdefghi")}
    assert refused(several(1), claim) == "claim c0 can be served in more than 8 ways: name fewer of them"


def test_the_names_of_claims_are_known_as_soon_as_they_are_made() -> None:
    pod = a_claiming_pod("a", template="quarter")
    assert list(claim_names(pod)) == [("gpu", "", "quarter")]
    assert list(claim_names(a_claiming_pod("a", template="quarter", made="x"))) == [("gpu", "x", "quarter")]
    assert list(claim_names(a_claiming_pod("a", named="ours"))) == [("gpu", "ours", "")]
