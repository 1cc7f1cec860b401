"""What the webhook says of new pods is what the policies say, and what the operator can place."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from fakes.admission_cases import ACCEPTED, COUNTED, FOREIGN, HAMI_TOLD, REFUSED, VOLCANO_COUNT, VOLCANO_MEMORY
from fakes.claims import a_claiming_pod
from fakes.objects import CORES, DIALECTS, GPU, MEMORY, PERCENTAGE, a_container, a_pod_object
from gpuledger.configuration.dialects import admission_rules
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.rules import OPERATOR
from gpuledger.formats.admission.webhook import AdmissionRules, check, filled_in
from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.formats.dialects.request import pod_request
from gpuledger.model.errors import BadInput

Json = dict[str, Any]

RULES = AdmissionRules(DIALECTS, ("gpuledger",), hiding=False)  # of which test_autoscalers.py is
LABEL = "gpuledger.dev/managed"


def bare(limits: Json, **fields: Any) -> Json:
    """Return a pod as the API server shows it of a user who named no scheduler."""
    return a_pod_object(limits=limits, scheduler_name="default-scheduler", **fields)


def refusal(pod: Json, account: str = "user", rules: AdmissionRules = RULES) -> str:
    with pytest.raises(BadInput) as caught:
        check(pod, account, rules)
    return str(caught.value)


@pytest.mark.parametrize("scheduler", [None, "", "default-scheduler"])
def test_a_pod_that_asks_gets_scheduler_and_label(scheduler: str | None) -> None:
    pod = bare({GPU: 1})
    pod["metadata"]["labels"] = {"app": "a"}
    pod["spec"]["schedulerName"] = scheduler
    stored = filled_in(pod, RULES)
    assert stored["spec"]["schedulerName"] == "gpuledger"
    assert stored["metadata"]["labels"] == {"app": "a", LABEL: "true"}
    assert stored["spec"]["containers"] == pod["spec"]["containers"]


@pytest.mark.parametrize(("limits", "count"), COUNTED)
def test_the_count_that_is_added_is_of_the_same_words(limits: Json, count: str) -> None:
    (main,) = filled_in(bare(limits), RULES)["spec"]["containers"]
    assert main["resources"] == {"limits": {**limits, count: "1"}, "requests": {**limits, count: "1"}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]),
        ({"env": [{"name": "A"}]}, [{"name": "A"}, {"name": "CUDA_TASK_PRIORITY", "value": "1"}]),
        ({"env": [{"name": "CUDA_TASK_PRIORITY", "value": "0"}]}, [{"name": "CUDA_TASK_PRIORITY", "value": "0"}]),
    ],
)
def test_hami_core_learns_a_containers_priority_unless_the_container_sets_it(given: Json, found: list[Json]) -> None:
    pod = bare({}, containers=[a_container("main", {GPU: 1, "nvidia.com/priority": 1}) | given, a_container("plain")])
    main, plain = filled_in(pod, RULES)["spec"]["containers"]
    assert main["env"] == found
    assert "env" not in plain


def test_each_container_gets_its_own_count_and_init_containers_too() -> None:
    pod = bare({}, containers=[a_container("a", {}), a_container("b", {MEMORY: 1, GPU: 2}), a_container("c")])
    pod["spec"]["containers"] += [a_container("d", {VOLCANO_MEMORY: 1})]
    pod["spec"]["initContainers"] = [a_container("early", {CORES: 5}, restartPolicy="Always")]
    spec = filled_in(pod, RULES)["spec"]
    found = {c["name"]: c["resources"]["limits"] for c in [*spec["containers"], *spec["initContainers"]]}
    assert found == {
        "a": {},
        "b": {MEMORY: 1, GPU: 2},
        "c": {MEMORY: "4k", GPU: "1"},
        "d": {VOLCANO_MEMORY: 1, VOLCANO_COUNT: "1"},
        "early": {CORES: 5, GPU: "1"},
    }


def test_the_number_that_is_added_is_the_default_of_the_settings() -> None:
    settings = Settings().changed(
        {"default_gpus": 3, "volcano_count": GPU, "scheduler_name": "own", "hide_from_autoscalers": False}
    )
    stored = filled_in(bare({VOLCANO_MEMORY: 1}), admission_rules(settings))
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {VOLCANO_MEMORY: 1, GPU: "3"}
    assert stored["spec"]["schedulerName"] == "own"


@pytest.mark.parametrize("limits", [{}, {"cpu": 1}, {GPU: 0}, {"nvidia.com/priority": 1}, {"example.com/gpu": 1}])
def test_a_pod_that_asks_for_no_gpu_stays_as_it_is(limits: Json) -> None:
    pod = bare(limits, node_name="node")
    assert filled_in(pod, RULES) == pod
    assert check(pod, "user", RULES) == ()


def test_what_is_filled_in_is_a_copy_and_the_second_time_changes_nothing() -> None:
    pod = bare({MEMORY: 1})
    before = deepcopy(pod)
    stored = filled_in(pod, RULES)
    assert pod == before
    assert filled_in(stored, RULES) == stored
    assert check(stored, "user", RULES) == ()


def test_a_pod_that_can_not_be_read_becomes_ours_all_the_same() -> None:
    """Where nothing refuses it, the operator has to say why it waits."""
    stored = filled_in(bare({MEMORY: "4Gi"}), RULES)
    assert stored["spec"]["schedulerName"] == "gpuledger"
    assert stored["spec"]["containers"] == bare({MEMORY: "4Gi"})["spec"]["containers"]


def test_a_container_without_a_name_is_left_to_the_api_server() -> None:
    pod = bare({MEMORY: 1})
    del pod["spec"]["containers"][0]["name"]
    assert filled_in(pod, RULES)["spec"]["containers"] == pod["spec"]["containers"]


@pytest.mark.parametrize("limits", [limits for limits, _ in REFUSED], ids=str)
def test_what_the_operator_refuses_is_refused_in_its_words(limits: Json) -> None:
    pod = filled_in(bare(limits), RULES)
    with pytest.raises(BadInput) as of_the_operator:
        pod_request(pod, DIALECTS)
    assert refusal(pod) == str(of_the_operator.value)


@pytest.mark.parametrize("limits", ACCEPTED, ids=str)
def test_what_the_policies_accept_is_accepted(limits: Json) -> None:
    check(filled_in(a_pod_object(limits=limits), RULES), "user", RULES)


def test_annotations_that_the_operator_can_not_read_are_refused_too() -> None:
    pod = a_pod_object()
    pod["metadata"]["annotations"] = {"gpuledger.dev/numa-bind": "perhaps"}
    assert refusal(pod) == "annotation gpuledger.dev/numa-bind: 'perhaps' is neither true nor false"


def test_what_has_no_effect_is_told() -> None:
    (warning,) = check(a_pod_object(limits={GPU: 1, MEMORY: 1, PERCENTAGE: 50}), "user", RULES)
    assert f"says {MEMORY} and {PERCENTAGE}" in warning


def test_another_scheduler_is_refused_and_any_of_ours_stays() -> None:
    rules = replace(RULES, scheduler_names=("own", "volcano"))
    pod = filled_in(a_pod_object(scheduler_name="volcano"), rules)
    assert pod["spec"]["schedulerName"] == "volcano"
    check(pod, "user", rules)
    assert refusal(a_pod_object(), rules=rules).endswith(
        "its scheduler gpuledger does not know who has them: write spec.schedulerName: own or volcano"
    )


def test_a_node_by_hand_is_refused() -> None:
    assert refusal(a_pod_object(node_name="node")).endswith("to say which nodes it may use, write spec.nodeSelector")


@pytest.mark.parametrize("name", [DEVICES_ANNOTATION, *FOREIGN])
def test_nobody_else_creates_a_pod_that_says_its_cards(name: str) -> None:
    pod = a_pod_object(limits={})
    pod["metadata"]["annotations"] = {name: "1", "team": "blue"}
    assert name in refusal(pod)
    assert check(pod, OPERATOR, RULES) == ()


def test_wishes_for_cards_may_be_created() -> None:
    pod = a_pod_object()
    pod["metadata"]["annotations"] = {"hami.io/vgpu-mode": "hami-core", "gpuledger.dev/use-gpuuuid": "GPU-0"}
    assert check(pod, "user", RULES) == ()


def test_our_annotation_is_spoken_of_first() -> None:
    """In a namespace that is left out, pods are asked about for that annotation alone."""
    pod = bare({MEMORY: "4Gi"}, node_name="node")
    pod["metadata"]["annotations"] = {HAMI_TOLD: "", DEVICES_ANNOTATION: "{}"}
    assert DEVICES_ANNOTATION in refusal(pod)


TAINTED = admission_rules(Settings().changed({"node_taint": "volcano.sh/vgpu=hami:NoSchedule"}))
TOLERATION = {"key": "volcano.sh/vgpu", "operator": "Equal", "value": "hami", "effect": "NoSchedule"}


@pytest.mark.parametrize("others", [None, [], [{"key": "a", "operator": "Exists"}], [{**TOLERATION, "value": "no"}]])
def test_the_taint_of_our_nodes_is_tolerated_by_pods_that_ask(others: list[Json] | None) -> None:
    for limits, added in (({GPU: 1}, [TOLERATION]), ({"cpu": 1}, [])):
        pod = bare(limits)
        pod["spec"]["tolerations"] = others
        assert (filled_in(pod, TAINTED)["spec"]["tolerations"] or []) == [*(others or []), *added]


@pytest.mark.parametrize(
    "own", [TOLERATION, {"operator": "Exists"}, {"key": "volcano.sh/vgpu", "operator": "Exists", "effect": ""}]
)
def test_a_taint_is_not_tolerated_twice(own: Json) -> None:
    pod = bare({GPU: 1})
    pod["spec"]["tolerations"] = [own]
    assert filled_in(pod, TAINTED)["spec"]["tolerations"] == [own]


def test_a_pod_that_only_brings_claims_is_left_as_it_is() -> None:
    """What its claims ask for is in objects that no review has."""
    pod = a_claiming_pod("pod", template="quarter", scheduler_name="default-scheduler")
    assert filled_in(pod, RULES) == pod
    assert check(pod, "user", RULES) == ()


def test_a_pod_with_claims_and_resources_is_one_that_asks() -> None:
    pod = a_claiming_pod("pod", template="quarter", scheduler_name="default-scheduler", containers=[a_container()])
    stored = filled_in(pod, RULES)
    assert (stored["spec"]["schedulerName"], check(stored, "user", RULES)) == ("gpuledger", ())
    assert stored["spec"]["resourceClaims"] == pod["spec"]["resourceClaims"]
