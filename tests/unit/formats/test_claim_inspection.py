"""What `gpuledger inspect` says of claims, and of pods that bring them."""

from typing import Any

from fakes.claims import a_claiming_pod, a_resource_claim, a_template
from fakes.objects import DIALECTS
from gpuledger.formats.inspection import inspected
from gpuledger.what_if.scene import claims_in

Json = dict[str, Any]


def shown(*documents: Json) -> list[Json]:
    claims = claims_in(documents)
    return [each for document in documents for each in inspected(document, DIALECTS, claims)]


def test_a_template_says_what_its_claims_ask_for() -> None:
    (found,) = shown(a_template("half", memory="8000Mi"))
    (entry,) = found["containers"]
    assert (entry["name"], entry["claim"], entry["request"]["memoryMiB"]) == ("half/gpu", "half", 8_000)
    assert found["problems"] == []


def test_what_a_claim_can_not_have_is_a_problem() -> None:
    (found,) = shown(a_resource_claim("all", adminAccess=True))
    assert found["problems"][0].startswith("claim all, request gpu: adminAccess is not given")
    (none,) = shown({**a_resource_claim("none"), "spec": {"devices": 3}})
    assert none["problems"][0].startswith("it is no claim of resource.k8s.io/v1")


def test_a_pod_is_shown_with_what_its_claims_ask_for() -> None:
    pod, _ = shown(a_claiming_pod("pod", template="half"), a_template("half", memory="8000Mi"))
    assert [(each["name"], bool(each["request"])) for each in pod["containers"]] == [("main", False), ("gpu/gpu", True)]
    assert (pod["problems"], pod["notes"]) == ([], [])


def test_a_pod_whose_template_is_not_given_says_so() -> None:
    (pod,) = shown(a_claiming_pod("pod", template="half"))
    assert pod["notes"] == ["claim gpu: what it asks for says ResourceClaimTemplate half, which was not given"]


def test_alternatives_are_told() -> None:
    template = a_template("choice")
    wish = {"deviceClassName": "gpu.gpuledger.dev", "count": 2}
    choices = [{"name": "two", **wish}, {"name": "one", **wish, "count": 1}]
    template["spec"]["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": choices}]
    (found,) = shown(template)
    assert [each["name"] for each in found["containers"]] == ["choice/gpu/two"]
    assert found["notes"] == ["claim choice: or gpu/one: 1 card with 100 %"]
