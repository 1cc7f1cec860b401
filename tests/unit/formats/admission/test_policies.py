"""The API server's policies say the same names as the settings, and stay away from what they are not for."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpuledger.command_line.program import main
from gpuledger.configuration.dialects import OWN_ANNOTATIONS, dialects_of, policies
from gpuledger.configuration.settings import RESOURCES, Settings
from gpuledger.formats import annotations, confirmation
from gpuledger.formats.admission.rules import FOREIGN_ENDINGS
from gpuledger.formats.custom_resource.crd import literal
from gpuledger.formats.dialects.assignments import FOREIGN_ANNOTATIONS
from gpuledger.formats.dialects.selection import MODE, USE_UUID

Json = dict[str, Any]

MANIFESTS = Path(__file__).parents[4] / "manifests"
FILES = {
    "mutating": "admission/mutating.yaml",
    "validating": "admission/validating.yaml",
    "agents": "agent/policy.yaml",
}
KINDS = tuple(FILES)
EXEMPT = {"kube-system", "gpuledger-system"}


def rendered(settings: Settings, *kinds: str) -> dict[str, Json]:
    """Return name of a policy -> the policy, without bindings."""
    documents = yaml.safe_load_all(policies(settings, frozenset(kinds or KINDS)))
    return {each["metadata"]["name"]: each for each in documents if each["kind"].endswith("Policy")}


def bindings(settings: Settings) -> dict[str, Json]:
    """Return name of a policy -> the spec of its binding."""
    documents = list(yaml.safe_load_all(policies(settings, frozenset(KINDS))))
    return {each["spec"]["policyName"]: each["spec"] for each in documents if each["kind"].endswith("Binding")}


def expressions(value: object) -> Iterator[str]:
    """Yield every expression in a policy."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expression", "messageExpression"):
                yield inner
            else:
                yield from expressions(inner)
    if isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


def strings(text: str) -> set[str]:
    return set(re.findall(r'"((?:[^"\\]|\\.)*)"', text))


def variable(policy: Json, name: str) -> str:
    (found,) = (each["expression"] for each in policy["spec"]["variables"] if each["name"] == name)
    return str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_in_manifests_are_what_their_settings_give(kind: str) -> None:
    stated = yaml.safe_load((MANIFESTS / "settings.yaml").read_text())
    text = policies(Settings().changed(stated), frozenset({kind}))
    assert (MANIFESTS / FILES[kind]).read_text() == text, "run `make generate` and commit it"


def test_the_folders_apply_all_files() -> None:
    for file in map(Path, FILES.values()):
        resources = yaml.safe_load((MANIFESTS / file.parent / "kustomization.yaml").read_text())["resources"]
        assert file.name in resources


def test_the_compatible_set_up_renames_the_count_everywhere_at_once() -> None:
    """With one changed setting, nothing may go on speaking of Volcano's own count."""
    before, after = Settings(), Settings().changed({"volcano_count": "nvidia.com/gpu"})
    assert before.volcano_count in policies(before, frozenset(KINDS))
    assert before.volcano_count not in policies(after, frozenset(KINDS))
    defaults = variable(rendered(after)["gpuledger-pods"], "defaults")
    assert '"volcano.sh/vgpu-memory": {"count": "nvidia.com/gpu", "gpus": "1"}' in defaults


def test_every_name_of_a_resource_comes_from_the_settings() -> None:
    names = {option: f"example.com/{option}" for option in RESOURCES}
    found = rendered(Settings().changed({**names, "vendors": [], "koordinator_names": False}))
    asking = found["gpuledger-pods"], found["gpuledger-requests"]
    for policy in asking:
        named = {name for text in expressions(policy["spec"]) for name in strings(text) if "/" in name}
        elsewhere = {"gpuledger.dev/managed", "/spec/schedulerName", "/metadata/labels", "/metadata/labels/"}
        unsaid = {names["resource_priority"]} if policy is asking[1] else set()  # it asks for nothing
        assert named - elsewhere == set(names.values()) - unsaid


def test_a_resource_without_a_name_is_not_spoken_of() -> None:
    settings = Settings().changed({"volcano_count": "", "volcano_classic_count": "", "vendors": []})
    found = rendered(settings)
    assert '""' not in "".join(expressions(found["gpuledger-pods"]["spec"]))
    assert "volcano.sh/vgpu-memory" not in variable(found["gpuledger-pods"], "defaults")
    assert "volcano.sh/vgpu-memory" in variable(found["gpuledger-requests"], "names")


def test_the_number_that_is_added_is_the_default_of_the_settings() -> None:
    added = {
        number: variable(rendered(Settings().changed({"default_gpus": number}))["gpuledger-pods"], "defaults")
        for number in (0, 3)
    }
    assert '"nvidia.com/gpumem": {"count": "nvidia.com/gpu", "gpus": "3"}' in added[3]
    assert "nvidia.com/gpumem" not in added[0]


def test_pods_get_the_first_scheduler_and_may_name_any_of_ours() -> None:
    found = rendered(Settings().changed({"scheduler_name": "own", "extra_scheduler_names": ["volcano"]}))
    mutations = [each["jsonPatch"]["expression"] for each in found["gpuledger-pods"]["spec"]["mutations"]]
    assert 'path: "/spec/schedulerName", value: "own"' in mutations[0]
    assert variable(found["gpuledger-requests"], "scheduler_names") == '["own", "volcano"]'


def test_the_api_server_rewrites_a_new_pod_once_and_once_more_for_a_taint() -> None:
    """For each mutation it writes the pod as JSON, reads it again, and fills in its defaults."""
    for taint, count in (("", 1), ("gpus=ours:NoSchedule", 2)):
        found = rendered(Settings().changed({"node_taint": taint}))
        assert len(found["gpuledger-pods"]["spec"]["mutations"]) == count


def test_requests_that_say_nothing_of_cards_are_let_go_by_the_conditions() -> None:
    """These look at every new pod, every Binding, and the former at each change of any pod, as by its kubelet."""
    found = rendered(Settings())
    for name in ("gpuledger-devices", "gpuledger-foreign-devices"):
        by_whom, what = (each["expression"] for each in found[name]["spec"]["matchConditions"])
        assert "request.userInfo" in by_whom
        assert "object.metadata.?annotations" in what
    (rule,) = found["gpuledger-devices"]["spec"]["validations"]
    (condition,) = [
        c for c in found["gpuledger-devices"]["spec"]["matchConditions"] if c["name"] == "changes-its-cards"
    ]
    assert condition["expression"].replace(" != ", " == ", 1) == rule["expression"], "what is let go breaks no rule"


def test_amounts_are_limited_in_the_unit_in_which_they_are_said() -> None:
    settings = Settings().changed({"resource_memory_unit_mib": 1024})
    table = variable(rendered(settings)["gpuledger-requests"], "words")
    assert '"nvidia.com/gpumem": {"most": "16384", "means": "memory per card in units of 1024 MiB"' in table


def test_wishes_of_users_are_not_among_what_only_schedulers_write() -> None:
    wishes = {*MODE, *USE_UUID, *(each.use_uuid for each in dialects_of(Settings()).vocabularies)}
    assert not wishes & set(FOREIGN_ANNOTATIONS)
    assert not [wish for wish in wishes if wish.endswith(FOREIGN_ENDINGS)]


def test_our_account_may_patch_what_the_program_patches_and_nothing_else() -> None:
    """All names of annotations that are given to annotate_pod, wherever that is."""
    source = Path(__file__).parents[4] / "operator" / "gpuledger" / "workflows"
    text = "".join(file.read_text() for file in source.rglob("*.py"))
    constants = re.findall(r"\.annotate_pod\([\w()]+, (\w+),", text)
    assert len(constants) == text.count(".annotate_pod(")
    values = {**vars(annotations), **vars(confirmation)}
    assert {values[name] for name in constants} == set(OWN_ANNOTATIONS)


def test_a_policy_that_fails_refuses_and_every_one_is_bound() -> None:
    found, bound = rendered(Settings()), bindings(Settings())
    assert bound.keys() == found.keys()
    assert found.pop("gpuledger-words")["spec"]["failurePolicy"] == "Ignore", "what only warns refuses nothing"
    assert bound.pop("gpuledger-words")["validationActions"] == ["Warn"]
    assert {policy["spec"]["failurePolicy"] for policy in found.values()} == {"Fail"}
    validating = {name for name, policy in found.items() if policy["kind"].startswith("Validating")}
    assert {name for name, spec in bound.items() if spec.get("validationActions") == ["Deny"]} == validating


def test_what_concerns_requests_leaves_out_exempt_namespaces() -> None:
    for name, spec in bindings(Settings()).items():
        scoped = name in {
            "gpuledger-pods",
            "gpuledger-hiding",
            "gpuledger-requests",
            "gpuledger-foreign-devices",
            "gpuledger-words",
            "gpuledger-card-access",
        }
        assert ("matchResources" in spec) is scoped
        if scoped:
            label, itself = spec["matchResources"]["namespaceSelector"]["matchExpressions"]
            assert (label["key"], label["operator"], label["values"]) == ("gpuledger.dev/ignore", "NotIn", ["true"])
            assert (itself["key"], itself["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
            assert set(itself["values"]) == EXEMPT


def test_namespaces_can_opt_in_and_what_protects_the_ledger_holds_everywhere() -> None:
    everywhere, labelled = bindings(Settings()), bindings(Settings(admission_namespaces="labelled"))
    assert everywhere.keys() == labelled.keys()
    opt_in = {"key": "gpuledger.dev/admission", "operator": "In", "values": ["true"]}
    for name, spec in labelled.items():
        if "matchResources" in everywhere[name] and name != "gpuledger-card-access":  # wherever the others hold
            expressions = spec["matchResources"]["namespaceSelector"]["matchExpressions"]
            assert expressions.pop() == opt_in
        assert spec == everywhere[name]
    assert "matchResources" not in labelled["gpuledger-devices"]


@pytest.mark.parametrize(("setting", "action"), [("refuse", "Deny"), ("warn", "Warn"), ("record", "Audit")])
def test_ways_to_cards_without_a_share_are_judged_where_namespaces_opt_in(setting: str, action: str) -> None:
    spec = bindings(Settings(card_access=setting))["gpuledger-card-access"]
    assert spec["validationActions"] == [action]
    assert spec["matchResources"]["namespaceSelector"]["matchLabels"] == {"gpuledger.dev/admission": "true"}


def test_containers_without_cards_are_changed_only_if_that_is_set() -> None:
    assert "gpuledger-env" not in bindings(Settings())
    assert "gpuledger-env" in bindings(Settings(overwrite_env=True))


def test_only_kinds_that_were_asked_for_are_printed() -> None:
    for kind in KINDS:
        printed = CliRunner().invoke(main, ["admission-policies", "--kind", kind])
        assert printed.exit_code == 0
        kinds = {document["kind"] for document in yaml.safe_load_all(printed.output)}
        policy = f"{'Mutating' if kind == 'mutating' else 'Validating'}AdmissionPolicy"
        assert kinds == {policy, f"{policy}Binding"}


def test_the_command_takes_settings_and_writes_to_a_file(tmp_path: Path) -> None:
    settings, output = tmp_path / "settings.yaml", tmp_path / "policies.yaml"
    settings.write_text("scheduler_name: own\n")
    done = CliRunner().invoke(
        main, ["admission-policies", "--settings", str(settings), "--output", str(output)], catch_exceptions=False
    )
    assert (done.exit_code, done.output) == (0, "")
    assert '["own"]' in output.read_text()


@pytest.mark.parametrize("text", ["plain", "it's", 'with "quotes"', "back\\slash", "naïve"])
def test_a_text_can_not_end_the_string_that_it_is_in(text: str) -> None:
    quoted = literal(text)
    assert quoted[0] == quoted[-1] == '"'
    assert not re.search(r'(?<!\\)(?:\\\\)*"', quoted[1:-1])


def test_a_long_list_is_broken_between_its_items_and_never_in_one() -> None:
    """CEL's strings end with their line: a policy with one that is broken compiles on no API server."""
    models = [f"NVIDIA A100-SXM4-{size}GB  of {size}=81920" for size in range(20)]
    found = literal(models)
    assert "\n" in found
    assert json.loads(found) == models
