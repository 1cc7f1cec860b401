"""What a cluster is compared with is what the other commands print for it."""

from typing import Any

import pytest
import yaml

from gpuledger.configuration.dialects import policies, webhook_configuration
from gpuledger.configuration.settings import Settings
from gpuledger.doctor.facts import differences
from gpuledger.doctor.reading import release_for
from gpuledger.formats.admission.webhook import WebhookAddress

OTHERS = Settings(resource_count="example.com/gpu", scheduler_name="mine", node_taint="gpu=ours:NoSchedule")
OF_QUEUES = Settings(kueue=True, sum_models=("T4=15360",), queue_words=True, all_drivers_scheduler_name="all")
IN_SOME = Settings(admission_namespaces="labelled", volcano_capacity=True)


def loaded(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def by_name(objects: list[Any]) -> dict[tuple[str, str], Any]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def test_the_policies_are_those_that_are_printed() -> None:
    for settings in (Settings(), OTHERS, OF_QUEUES, IN_SOME):
        printed = loaded(policies(settings, frozenset(("mutating", "validating", "agents"))))
        assert by_name(list(release_for(settings).policies)) == by_name(printed)


def test_the_webhooks_are_those_that_are_printed() -> None:
    for settings in (Settings(), OTHERS, OF_QUEUES, IN_SOME):
        printed = loaded(webhook_configuration(settings, frozenset(("mutating", "validating")), WebhookAddress()))
        assert by_name(list(release_for(settings).webhooks)) == by_name(printed)


def test_differences_are_paths_on_either_side() -> None:
    wanted = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert list(differences(wanted, wanted)) == []
    assert list(differences(wanted, {"a": {"b": 2, "c": [1]}, "e": 1})) == ["a.b", "a.c", "d", "e"]
    assert list(differences({"l": [{"a": 1}]}, {"l": [{"a": 2}]})) == ["l[0].a"]


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ('["one","two two"].exists(each,each in names)', True),
        ('[ "one",\n"two two" ].exists(each, each  in names)\n', True),
        ('["one", "twotwo"].exists(each, each in names)', False),
        ('["one", "two two"].exists(each, eachin names)', False),
    ],
)
def test_white_space_between_the_words_of_an_expression_is_no_difference(found: str, same: bool) -> None:
    """Helm writes a list of names without any, so a release with several scheduler names was an error."""
    wanted = {"expression": '["one", "two two"].exists(each, each in names)'}
    assert (list(differences(wanted, {"expression": found})) == []) is same


def test_what_the_api_server_fills_in_is_no_difference() -> None:
    filled = {"matchPolicy": "Equivalent", "objectSelector": {}, "more": {"namespaceSelector": {}}, "empty": []}
    assert list(differences({}, filled)) == []
    assert list(differences({}, {"matchPolicy": "Exact"})) == ["matchPolicy"]
