"""Queues in Volcano's and KAI's words, taken for LocalQueues: which objects get which label; and who is warned."""

import base64
import json
from copy import deepcopy
from typing import Any

import pytest

from fakes.queue_cases import BY_KAI, BY_VOLCANO, KEPT, KUEUE, QUEUED, WORDS, a_job, a_pod, a_template
from gpuledger.configuration.dialects import admission_rules, policies, webhook_configuration
from gpuledger.configuration.settings import Settings
from gpuledger.formats.admission.webhook import WebhookAddress, filled_in, queueing_review
from gpuledger.formats.dialects.unsupported import pod_warnings

Json = dict[str, Any]

SETTINGS = Settings().changed({"kueue": True, "queue_words": True})
RULES = admission_rules(SETTINGS)
OFF = admission_rules(Settings())


def labels_of(found: Json, rules: Any = RULES) -> Json:
    """Return the labels with which an object is stored, by the webhook."""
    if found["kind"] == "Pod":
        return dict(filled_in(found, rules)["metadata"].get("labels") or {})
    response = queueing_review({"request": {"uid": "1", "object": found}}, rules)["response"]
    stored = deepcopy(found)
    for change in json.loads(base64.b64decode(response.get("patch", ""))) if "patch" in response else ():
        assert (change["op"], change["path"]) == ("add", "/metadata/labels")
        stored["metadata"]["labels"] = change["value"]
    return dict(stored["metadata"].get("labels") or {})


@pytest.mark.parametrize("name", QUEUED)
def test_what_names_a_queue_gets_its_label_and_all_else_gets_none(name: str) -> None:
    body, queue = QUEUED[name]
    assert labels_of(body).get(KUEUE, "") == queue
    assert (body["metadata"].get("labels") or {}).items() <= labels_of(body).items()


@pytest.mark.parametrize("body", KEPT)
def test_the_label_that_a_user_wrote_stays(body: Json) -> None:
    assert labels_of(body).get(KUEUE) == (body["metadata"].get("labels") or {}).get(KUEUE)


@pytest.mark.parametrize(
    "spec",
    [
        {"replicatedJobs": [{"template": {"spec": {"template": a_template(BY_VOLCANO)}}}]},
        {"pytorchReplicaSpecs": {"Worker": {"template": a_template(BY_KAI)}}},
    ],
)
def test_words_are_found_in_the_templates_of_each_kind(spec: Json) -> None:
    assert labels_of({"kind": "Training", "metadata": {"name": "t"}, "spec": spec})[KUEUE] == "team"


def test_a_word_in_a_template_without_cards_does_not_count() -> None:
    driver = {"template": {"spec": {"template": a_template(BY_VOLCANO, {"cpu": "1"})}}}
    workers = {"template": {"spec": {"template": a_template({})}}}
    body = {"kind": "JobSet", "metadata": {"name": "t"}, "spec": {"replicatedJobs": [driver, workers]}}
    assert KUEUE not in labels_of(body)


def test_without_the_setting_nothing_is_written_and_nothing_is_rendered() -> None:
    for body in (a_pod(BY_VOLCANO), a_job(BY_VOLCANO, {})):
        assert KUEUE not in labels_of(body, OFF)
    for settings in (Settings(), SETTINGS):
        on = settings.queue_words
        mutating, where = frozenset({"mutating"}), WebhookAddress()
        assert ("gpuledger-queues" in policies(settings, mutating)) is on
        assert ("queues.gpuledger.dev" in webhook_configuration(settings, mutating, where)) is on


@pytest.mark.parametrize("words", WORDS)
def test_a_pod_is_warned_of_a_queue_unless_it_goes_there(words: Json) -> None:
    def warned(pod: Json) -> int:
        return sum("names the queue" in each.text for each in pod_warnings(pod, RULES.dialects))

    plain = a_pod(words)
    assert warned(plain) == 1
    assert warned(filled_in(plain, RULES)) == 0
    elsewhere = deepcopy(plain)
    elsewhere["metadata"]["labels"] = {**words.get("labels", {}), KUEUE: "mine"}
    assert warned(elsewhere) == 1
