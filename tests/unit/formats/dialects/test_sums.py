"""What containers ask for in sum: the products, by which models, in which templates; and how Kueue would count else."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.objects import GPU, MEMORY, a_container, a_pod_object
from fakes.sum_cases import LARGE, SMALL, SUM_CORES, SUM_GPUS, SUM_MEMORY, SUM_MODELS, SUMMED
from gpuledger.configuration.dialects import admission_rules, policies, webhook_configuration
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.webhook import WebhookAddress, filled_in, summing_review, sums_patch
from gpuledger.formats.dialects.request import pod_request

Json = dict[str, Any]

ROOT = Path(__file__).parents[4]
SETTINGS = Settings().changed({"sum_models": SUM_MODELS})
RULES = admission_rules(SETTINGS)
SUMS = (SUM_MEMORY, SUM_CORES, SUM_GPUS)
SHARE = {GPU: "2", MEMORY: "4000"}


def sums_of(*limits: Json, rules: Any = RULES, **fields: Any) -> list[tuple[int, ...]]:
    """Return memory, cores and cards in sum, for each container of a pod that has these."""
    pod = a_pod_object(containers=[a_container(f"c{i}", each) for i, each in enumerate(limits)])
    pod["metadata"] |= fields.pop("metadata", {})
    pod["spec"] |= fields
    stored = filled_in(pod, rules)["spec"]["containers"]
    for each in stored:
        written = {part: {n: a for n, a in each["resources"][part].items() if n in SUMS} for part in each["resources"]}
        assert written["limits"] == written["requests"]
    return [tuple(int(each["resources"]["limits"].get(name, 0)) for name in SUMS) for each in stored]


def template(**limits: Json) -> Json:
    return {"spec": {"containers": [{"name": name, "resources": {"limits": each}} for name, each in limits.items()]}}


@pytest.mark.parametrize(("limits", "wanted"), SUMMED)
def test_a_container_is_written_its_cards_times_what_it_asks_for_of_each(
    limits: Json, wanted: tuple[int, int, int]
) -> None:
    assert sums_of(limits) == [wanted]


def test_each_container_gets_its_own_and_only_those_that_ask_get_any() -> None:
    assert sums_of({GPU: 1, MEMORY: 1000}, {"cpu": 1}, SHARE) == [(1000, 0, 1), (0, 0, 0), (8000, 0, 2)]


def test_other_vendors_cards_are_not_summed_up() -> None:
    assert sums_of({"hygon.com/dcunum": 1, "hygon.com/dcumem": 100}) == [(0, 0, 0)]


@pytest.mark.parametrize(("which", "memory_mib"), [("largest", LARGE[1]), ("smallest", SMALL[1])])
def test_a_whole_card_counts_as_the_largest_or_the_smallest_that_the_pod_may_get(which: str, memory_mib: int) -> None:
    rules = admission_rules(SETTINGS.changed({"sum_by": which}))
    assert sums_of({GPU: 2}, rules=rules) == [(2 * memory_mib, 200, 2)]
    only = {"annotations": {"nvidia.com/use-gputype": "a100"}}
    assert sums_of({GPU: 1}, rules=rules, metadata=only) == [(LARGE[1], 100, 1)]


def test_what_admission_wrote_means_nothing_to_the_operator() -> None:
    pod = a_pod_object(limits=SHARE)
    assert pod_request(filled_in(pod, RULES), RULES.dialects) == pod_request(pod, RULES.dialects)


def test_written_twice_it_is_the_same_and_what_a_user_wrote_is_overwritten() -> None:
    once = filled_in(a_pod_object(limits=SHARE), RULES)
    assert filled_in(once, RULES) == once
    understated = a_pod_object(limits={**SHARE, **dict.fromkeys(SUMS, "1")})
    assert filled_in(understated, RULES)["spec"]["containers"] == once["spec"]["containers"]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"template": template(main=SHARE)}, "/spec/template/spec"),
        (
            {"replicatedJobs": [{}, {"template": {"spec": {"template": template(main=SHARE)}}}]},
            "/spec/replicatedJobs/1/template/spec/template/spec",
        ),
        (
            {"pytorchReplicaSpecs": {"Worker": {"template": template(main=SHARE)}}},
            "/spec/pytorchReplicaSpecs/Worker/template/spec",
        ),
        (
            {"rayClusterSpec": {"workerGroupSpecs": [{"template": template(main=SHARE)}]}},
            "/spec/rayClusterSpec/workerGroupSpecs/0/template/spec",
        ),
    ],
)
def test_templates_are_found_where_each_kind_has_them(spec: Json, path: str) -> None:
    sums = {SUM_MEMORY: "8000", SUM_GPUS: "2"}
    resources = {"limits": {**SHARE, **sums}, "requests": sums}
    wanted = [{"op": "add", "path": f"{path}/containers/0/resources", "value": resources}]
    assert sums_patch({"spec": spec}, RULES) == wanted
    review = summing_review({"request": {"uid": "1", "object": {"spec": spec}}}, RULES)["response"]
    assert review["allowed"]
    assert json.loads(base64.b64decode(review["patch"])) == wanted


def test_an_object_whose_sums_are_right_is_left_alone() -> None:
    sums = {SUM_MEMORY: "8000", SUM_GPUS: "2"}
    pod = template(main=SHARE)
    pod["spec"]["containers"][0]["resources"] = {"limits": {**SHARE, **sums}, "requests": sums}
    answer = summing_review({"request": {"uid": "1", "object": {"spec": {"template": pod}}}}, RULES)
    assert answer["response"] == {"uid": "1", "allowed": True}


@pytest.mark.parametrize("models", [[], SUM_MODELS])
def test_nothing_is_written_unless_models_are_named(models: list[str]) -> None:
    settings = Settings().changed({"sum_models": models})
    texts = (
        policies(settings, frozenset({"mutating"})),
        webhook_configuration(settings, frozenset({"mutating"}), WebhookAddress()),
    )
    for text, name in zip(texts, ("gpuledger-sums", "sums.gpuledger.dev"), strict=True):
        assert (name in text) is bool(models)
    if not models:
        assert sums_of(SHARE, rules=admission_rules(settings)) == [(0, 0, 0)]


@pytest.mark.parametrize("wrong", ["A100", "A100=", "A100=0", "=40960", "A100=40Gi", "A=B=1"])
def test_a_model_without_its_memory_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="sum_models is a list of MODEL=MIB"):
        Settings().changed({"sum_models": [wrong]})


def multiplied(containers: list[Json]) -> int:
    """Return what Kueue 0.19.2 charges by `multiplyBy`: the product of a pod's sums (applyResourceTransformations)."""
    memory, cards = (sum(int(each.get(name, 0)) for each in containers) for name in ("gpumem", "gpu"))
    return memory * (cards or 1)


def test_the_table_of_the_document_is_what_is_counted() -> None:
    text = (ROOT / "docs" / "sum-resources.md").read_text()
    rows = re.findall(r"^\| ((?:`\{[^|]+\}`(?:, )?)+) \| ([\d,]+) \| ([\d,]+) \|", text, re.MULTILINE)
    assert len(rows) > 5
    cluster = admission_rules(Settings().changed({"sum_models": ["A100-40GB=40960"]}))
    for containers, by_recipe, by_sums in rows:
        said = yaml.safe_load(f"[{containers.replace('`', '')}]")
        limits = [{f"nvidia.com/{name}": amount for name, amount in each.items()} for each in said]
        found = sum(memory for memory, _, _ in sums_of(*limits, rules=cluster))
        assert (multiplied(said), found) == (int(by_recipe.replace(",", "")), int(by_sums.replace(",", "")))
