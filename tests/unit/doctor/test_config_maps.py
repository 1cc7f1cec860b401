"""Where the workloads of the manifests have their settings from."""

from pathlib import Path
from typing import Any

import yaml

from gpuledger.doctor.reading import scheduler_config_file, settings_file

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
