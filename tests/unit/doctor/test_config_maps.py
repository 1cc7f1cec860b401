"""Where the workloads of the manifests have their settings from."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger.configuration.settings import Settings
from gpuledger.doctor.config_maps import read_settings, scheduler_config_file, settings_file
from gpuledger.model.errors import BadInput

Json = dict[str, Any]

MANIFESTS = Path(__file__).parents[3] / "manifests"
DEPLOYMENT = "deployment.yaml"


def workload(file: str) -> Json:
    return dict(yaml.safe_load((MANIFESTS / file).read_text()))


def test_the_manifests_workloads_have_their_settings_from_one_config_map() -> None:
    where = ("gpuledger-settings", "settings.yaml")
    assert settings_file(workload(DEPLOYMENT), "operator") == where
    assert settings_file(workload("agent/daemonset.yaml"), "agent") == where


def test_an_option_goes_before_the_variable_and_items_rename_keys() -> None:
    found = workload(DEPLOYMENT)
    spec = found["spec"]["template"]["spec"]
    operator = next(each for each in spec["containers"] if each["name"] == "operator")
    operator["args"] = ["run", "--settings", "/settings/mine.yaml"]
    volume = next(each for each in spec["volumes"] if each["name"] == "settings")
    volume["configMap"]["items"] = [{"key": "theirs", "path": "mine.yaml"}]
    assert settings_file(found, "operator") == ("gpuledger-settings", "theirs")


def test_settings_that_come_from_elsewhere_are_not_guessed() -> None:
    found = workload(DEPLOYMENT)
    assert settings_file(found, "no-such-container") is None
    operator = next(each for each in found["spec"]["template"]["spec"]["containers"] if each["name"] == "operator")
    operator["args"] = ["run", "--settings=/tmp/settings.yaml"]
    assert settings_file(found, "operator") is None


def test_a_scheduler_config_that_was_rendered_in_the_pod_is_not_looked_for() -> None:
    assert scheduler_config_file(workload(DEPLOYMENT)) is None


def test_a_scheduler_config_in_a_config_map_is_found() -> None:
    found = workload(DEPLOYMENT)
    volume = next(each for each in found["spec"]["template"]["spec"]["volumes"] if each["name"] == "config")
    del volume["emptyDir"]
    volume["configMap"] = {"name": "mine"}
    assert scheduler_config_file(found) == ("mine", "scheduler.yaml")


def test_settings_are_read_as_the_operator_reads_them() -> None:
    assert read_settings("") == Settings()
    assert read_settings("resource_count: example.com/gpu").resource_count == "example.com/gpu"


@pytest.mark.parametrize("text", ["- a", "no_such_option: 1", "{", "hami_config_file: /no/such/file"])
def test_settings_that_cannot_be_read_are_bad_input(text: str) -> None:
    with pytest.raises(BadInput):
        read_settings(text)
