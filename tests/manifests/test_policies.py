"""The API server's policies speak of what the settings say, or the chart refuses the settings."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chart import other_value
from effort import times
from gpuledger.configuration.dialects import policies, webhook_configuration
from gpuledger.configuration.settings import RESOURCES, Settings
from gpuledger.doctor.cluster_checks import WITH_AGENTS
from gpuledger.formats.admission.webhook import WebhookAddress
from manifests.helm import BEFORE_POLICIES, CHART, Helm, Json, preset

OPTIONS = {each["name"]: each for each in yaml.safe_load((CHART / "files" / "settings.yaml").read_text())}
IN_POLICIES = [name for name, option in OPTIONS.items() if option["in_policies"]]
NAMES = [name for name in IN_POLICIES if name in RESOURCES]
FILLED_IN = [
    *NAMES,
    *(name for name, option in OPTIONS.items() if "stand_in" in option),
    *("scheduler_name", "extra_scheduler_names", "node_taint", "volcano_capacity"),
    *("kueue", "sum_models", "sum_by", "queue_words", "hide_from_autoscalers", "admission_namespaces"),
    *("card_access", "overwrite_env"),
]
"""Options that the chart fills into the policies by itself."""

STATED = yaml.safe_load((CHART / "values.yaml").read_text())["settings"]
"""What the chart's values say of settings, in place of their defaults."""

OTHERS = [name for name in IN_POLICIES if name not in FILLED_IN]
WITHOUT_EFFECT = [name for name in OPTIONS if name not in IN_POLICIES]
EVERY = frozenset({"validating", "mutating", "agents"})
POLICY_KINDS = tuple(f"{each}AdmissionPolicy{part}" for each in ("Mutating", "Validating") for part in ("", "Binding"))


def plain(value: Any) -> Any:
    """Return an object without the white space in its expressions, which says nothing, and the chart's label."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key != "labels" or "matchLabels" in value}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return re.sub(r"\s", "", value) if isinstance(value, str) else value


def by_name(documents: list[Json], kinds: tuple[str, ...] = POLICY_KINDS) -> dict[tuple[str, str], Json]:
    return {(each["kind"], each["metadata"]["name"]): plain(each) for each in documents if each["kind"] in kinds}


def of_the_chart(
    helm: Helm, *flags: str, kinds: tuple[str, ...] = POLICY_KINDS, **values: Any
) -> dict[tuple[str, str], Json]:
    return by_name(list(helm.objects(*flags, **values).values()), kinds)


def of_the_program(settings: Json) -> dict[tuple[str, str], Json]:
    return by_name(list(yaml.safe_load_all(policies(Settings().changed({**STATED, **settings}), EVERY))))


EXCHANGED = {"resource_memory": "nvidia.com/gpucores", "resource_cores": "nvidia.com/gpumem"}
"""Two names that have changed places: neither may be replaced twice."""

MODELS = ["Tesla T4=15360", *(f"NVIDIA A100-SXM4-{size}GB=81920" for size in range(9)), 'Model "X" of Jo\'s \\=1']
UNITS = {"resource_memory_unit_mib": 256, "volcano_memory_unit_mib": 1024, "default_memory_mib": 4000}
OF_KUEUE: Json = {"kueue": True, "queue_words": True, "sum_models": MODELS}

CASES: list[Json] = [
    {},
    {"admission_namespaces": "all"},
    {"card_access": "record", "admission_namespaces": "all"},
    {"overwrite_env": True, "scheduler_name": "ours"},
    OF_KUEUE,
    {"queue_words": True, "admission_namespaces": "all"},
    {"hide_from_autoscalers": False, "sum_models": ["T4=15360"]},
    {"sum_models": ["T4=15360"]},
    {"sum_models": MODELS, "sum_by": "smallest", "node_taint": "gpu=ours:NoSchedule"},
    {"sum_models": MODELS, **UNITS, "default_gpus": 2, "default_cores": 100, "admission_namespaces": "all"},
    {**UNITS, "default_gpus": 3},
    {**OF_KUEUE, "scheduler_name": "ours", "extra_scheduler_names": ["hami-scheduler", "volcano", "x" * 60]},
    {**OF_KUEUE, **{name: other_value(name) for name in NAMES}, "admission_namespaces": "all"},
    *({name: other_value(name)} for name in FILLED_IN),
    {name: other_value(name) for name in FILLED_IN},
    EXCHANGED,
    {"scheduler_name": "ours", "extra_scheduler_names": ["hami-scheduler", "volcano"]},
    {"node_taint": "example.com/gpus=:NoExecute"},
    {"volcano_capacity": True},
    {"volcano_capacity": True, "volcano_memory": "example.com/memory", "volcano_cores": "example.com/cores"},
    {"node_taint": "volcano.sh/vgpu=hami:PreferNoSchedule", "resource_count": "example.com/gpu"},
]


@pytest.mark.parametrize("settings", CASES, ids=lambda case: ",".join(case) if len(case) < 4 else "all")
def test_the_chart_fills_in_what_the_program_would_render(helm: Helm, settings: Json) -> None:
    assert of_the_chart(helm, settings=settings) == of_the_program(settings)


NUMBERS = {"default_gpus": (1, 16), "default_memory_mib": (0, 90_000), "default_cores": (0, 100)}
WORDS = st.from_regex(r"[a-z][a-z0-9]{0,12}(-[a-z0-9]{1,12})?", fullmatch=True)
CHOSEN = st.fixed_dictionaries(
    {},
    optional={
        **{name: WORDS.map("example.com/{}".format) for name in NAMES},
        **{name: st.integers(*bounds) for name, bounds in NUMBERS.items()},
        **{name: st.integers(1, 2048) for name in UNITS if name not in NUMBERS},
        **{name: st.booleans() for name in ("kueue", "queue_words", "volcano_capacity", "hide_from_autoscalers")},
        "sum_models": st.lists(st.from_regex(r"[ -<>-~]{1,40}=[1-9][0-9]{3,5}", fullmatch=True), max_size=12),
        "sum_by": st.sampled_from(("largest", "smallest")),
        "admission_namespaces": st.sampled_from(("all", "labelled")),
        "scheduler_name": WORDS,
        "extra_scheduler_names": st.lists(WORDS.map("also-{}".format), unique=True, max_size=3),
        "node_taint": st.builds("{}={}:{}".format, WORDS, WORDS, st.sampled_from(("NoSchedule", "NoExecute"))),
    },
).filter(lambda chosen: len({chosen[name] for name in NAMES if name in chosen}) == len(NAMES & chosen.keys()))
"""Settings in any number and together, as far as the chart fills them in: names of resources differ."""


@given(chosen=CHOSEN)
@hypothesis.settings(max_examples=times(12, 300), deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
def test_whatever_settings_come_together_the_chart_fills_in_what_the_program_would_render(
    helm: Helm, chosen: Json
) -> None:
    assert of_the_chart(helm, settings=chosen) == of_the_program(chosen)


@pytest.mark.parametrize("name", ["over-hami", "over-volcano"])
def test_the_policies_of_a_preset_are_those_of_its_settings(helm: Helm, name: str) -> None:
    objects = helm.objects(preset(name))
    settings = yaml.safe_load(objects["ConfigMap", "gpuledger-settings"]["data"]["settings.yaml"])
    wanted = {key: each for key, each in of_the_program(settings).items() if key[1] not in WITH_AGENTS}
    assert by_name(list(objects.values())) == wanted


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {name: other_value(name) for name in NAMES},
        OF_KUEUE,
        {"queue_words": True, "admission_namespaces": "all"},
        {"hide_from_autoscalers": False, "extra_scheduler_names": ["volcano"]},
    ],
    ids=["default", "names", "kueue", "queue_words", "not hidden"],
)
def test_the_webhook_is_sent_the_pods_that_the_settings_name(helm: Helm, settings: Json) -> None:
    kinds = ("MutatingWebhookConfiguration",)
    found = of_the_chart(helm, settings=settings, kubernetes=BEFORE_POLICIES, kinds=kinds)
    changed = Settings().changed({**STATED, **settings})
    text = webhook_configuration(changed, frozenset({"mutating"}), WebhookAddress())
    wanted = by_name(list(yaml.safe_load_all(text)), kinds)
    for webhook in found["MutatingWebhookConfiguration", "gpuledger"]["webhooks"]:
        assert webhook["clientConfig"].pop("caBundle")
    assert found == wanted


def test_an_option_is_either_filled_in_or_refused_or_without_effect() -> None:
    assert set(FILLED_IN) | set(OTHERS) | set(WITHOUT_EFFECT) == {each.name for each in fields(Settings)}
    assert OTHERS
    assert "resource_priority" in FILLED_IN  # for the variable that HAMi-core reads
    assert "node_policy" in WITHOUT_EFFECT


def test_options_that_no_policy_knows_change_no_policy(helm: Helm) -> None:
    changed = {name: other_value(name) for name in WITHOUT_EFFECT if name != "bind_timeout_s"}
    assert of_the_chart(helm, settings=changed) == of_the_program({})


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_chart_cant_fill_in_is_refused_with_the_way_out(helm: Helm, name: str) -> None:
    text = helm.refusal(settings={name: other_value(name)})
    assert f"settings: {name} is set." in text
    assert "gpuledger admission-policies --settings settings.yaml" in text
    assert "--set-file admission.rendered=policies.yaml" in text
    assert "--set admission.mode=none" in text


def test_what_is_set_to_its_default_is_no_problem(helm: Helm) -> None:
    settings = {"default_gpus": 1, "vendors": ["all"], "vendors_file": ""}
    assert of_the_chart(helm, settings=settings) == of_the_program({})


@pytest.mark.parametrize("mode", ["webhook", "validating", "policies"])
def test_what_changes_more_than_words_is_refused_in_every_mode(helm: Helm, mode: str) -> None:
    admission = {"mode": mode}
    text = helm.refusal(settings={"volcano_classic_memory": ""}, admission=admission)
    assert "settings: volcano_classic_memory is empty." in text
    text = helm.refusal(settings={"default_gpus": 0}, admission=admission)
    assert "settings: default_gpus is 0." in text
    text = helm.refusal(settings={"volcano_count": "nvidia.com/gpu"}, admission=admission)
    assert "settings: volcano_count is nvidia.com/gpu, as another name is." in text


def test_without_policies_every_setting_goes(helm: Helm) -> None:
    helm.objects(settings={"volcano_count": "nvidia.com/gpu", "default_gpus": 2}, admission={"mode": "none"})


def test_policies_that_the_program_has_rendered_take_the_charts_place(helm: Helm, tmp_path: Path) -> None:
    settings = {"volcano_count": "nvidia.com/gpu", "default_gpus": 2, "volcano_classic_memory": ""}
    file = tmp_path / "policies.yaml"
    file.write_text(policies(Settings().changed({**STATED, **settings}), frozenset({"validating", "mutating"})))
    found = of_the_chart(helm, f"--set-file=admission.rendered={file}", settings=settings)
    assert found == of_the_program(settings)


def test_a_rendered_webhook_takes_the_charts_place(helm: Helm, tmp_path: Path) -> None:
    settings = {"volcano_count": "nvidia.com/gpu", "extra_scheduler_names": ["volcano"]}
    changed = Settings().changed({**STATED, **settings})
    address = WebhookAddress(ca_bundle=b"-----BEGIN CERTIFICATE-----")
    file = tmp_path / "policies.yaml"
    texts = (
        policies(changed, frozenset({"validating"})),
        webhook_configuration(changed, frozenset({"mutating"}), address),
    )
    file.write_text("---\n".join(texts))
    flag = f"--set-file=admission.rendered={file}"
    asked = {"mode": "webhook", "webhook": {"certificate": "secret"}}
    kinds = (*POLICY_KINDS, "MutatingWebhookConfiguration")
    found = of_the_chart(helm, flag, settings=settings, admission=asked, agent={"enabled": False}, kinds=kinds)
    assert found == by_name([each for text in texts for each in yaml.safe_load_all(text)], kinds)
    text = helm.refusal(flag, settings=settings, admission={"mode": "webhook"})
    assert "it can't go with a certificate that Helm makes" in text
    text = helm.refusal(flag, settings=settings, admission={"mode": "policies"})
    assert "admission.rendered has no MutatingAdmissionPolicy, which the mode policies is about" in text


def test_rendered_policies_of_other_settings_are_refused(helm: Helm, tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policies(Settings().changed(STATED), frozenset({"validating", "mutating"})))
    flag = f"--set-file=admission.rendered={file}"
    text = helm.refusal(flag, settings={"resource_memory": "example.com/mem"})
    assert 'admission.rendered does not speak of "example.com/mem", of which the settings do' in text
    assert "gpuledger admission-policies --settings settings.yaml" in text
    text = helm.refusal(flag, settings={"extra_scheduler_names": ["volcano"]})
    assert 'admission.rendered is not for the scheduler names ["gpuledger","volcano"], which the settings have' in text
    text = helm.refusal(flag, settings={"admission_namespaces": "all"})
    assert "admission.rendered is for other namespaces than the setting admission_namespaces" in text
