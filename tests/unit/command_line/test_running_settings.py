"""Commands that judge a cluster use the settings of its operator, unless others are named."""

import asyncio
from typing import Any, cast

import pytest
import yaml

from gpuledger.command_line.options import settings_in_use
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.kube_api.client import KubeClient
from gpuledger.model.errors import BadInput, Denied, NotFound
from installation import MANIFESTS

Json = dict[str, Any]
DEPLOYMENT = "/apis/apps/v1/namespaces/gpuledger-system/deployments/gpuledger"
CONFIG_MAPS = "/api/v1/namespaces/gpuledger-system/configmaps"
HAMIS = "/api/v1/namespaces/kube-system/configmaps/hami-scheduler-device"
ROWS = """
vendors:
  - {name: own, vendor: own, resources: {count: example.com/own}, register: example.com/node-own-register,
     assignment: {prefix: example.com/own, word: OWN}}
"""
HAMI = "nvidia: {resourceCountName: example.com/gpu}"


class Cluster:
    """Answers by path."""

    def __init__(self, objects: dict[str, Json | Exception]) -> None:
        self._objects = objects

    async def request(self, method: str, path: str) -> Json:
        assert method == "GET"
        found = self._objects.get(path, NotFound(f"{path} is not there"))
        if isinstance(found, Exception):
            raise found
        return found


def installed(settings: Json | str, **files: str) -> dict[str, Json | Exception]:
    """Return the objects of an installation with these settings, and with files in a ConfigMap of their own."""
    (deployment,) = yaml.safe_load_all((MANIFESTS / "deployment.yaml").read_text())
    spec = deployment["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "theirs", "configMap": {"name": "theirs"}})
    operator = next(each for each in spec["containers"] if each["name"] == "operator")
    operator["volumeMounts"].append({"name": "theirs", "mountPath": "/theirs"})
    text = settings if isinstance(settings, str) else yaml.safe_dump(settings)
    (volume,) = (each["configMap"]["name"] for each in spec["volumes"] if each["name"] == "settings")
    return {
        DEPLOYMENT: deployment,
        f"{CONFIG_MAPS}/{volume}": {"data": {"settings.yaml": text}},
        f"{CONFIG_MAPS}/theirs": {"data": files},
    }


def read(objects: dict[str, Json | Exception], named: Settings | None = None) -> Settings:
    return asyncio.run(settings_in_use(cast(KubeClient, Cluster(objects)), named))


def test_the_settings_are_those_of_the_operators_deployment() -> None:
    found = read(installed({"extra_scheduler_names": ["hami-scheduler"], "adopt_pods": True}))
    assert (found.scheduler_names, found.adopt_pods) == (("gpuledger", "hami-scheduler"), True)


def test_files_that_the_settings_name_are_read_from_the_config_maps_that_the_operator_has_there() -> None:
    found = read(installed({"hami_config_file": "/theirs/device-config.yaml"}, **{"device-config.yaml": HAMI}))
    assert found.resource_count == "example.com/gpu"


def test_a_table_of_vendors_that_the_operator_has_there_is_read_too() -> None:
    found = read(installed({"vendors_file": "/theirs/vendors.yaml", "vendors": ["own"]}, **{"vendors.yaml": ROWS}))
    assert "example.com/own" in dialects_of(found).counts()


def test_config_maps_that_the_settings_name_are_read_wherever_they_are() -> None:
    objects = installed({"hami_config_file": "configmap:kube-system/hami-scheduler-device"})
    objects[HAMIS] = {"data": {"device-config.yaml": HAMI}}
    assert read(objects).resource_count == "example.com/gpu"


def test_settings_that_are_named_count_and_the_cluster_is_not_asked() -> None:
    named = Settings().changed({"scheduler_name": "mine"})
    assert read({DEPLOYMENT: Denied("no")}, named) is named


def test_without_a_deployment_the_defaults_count() -> None:
    assert read({}) == Settings()


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ({DEPLOYMENT: Denied("you may not get deployments")}, "you may not get deployments; name them by --settings"),
        (installed("[1]"), "the file must be a list of `option: value` lines; name them by --settings"),
        (installed({"nosuch": 1}), "nosuch"),
        (installed({"hami_config_file": "/theirs/absent"}), "ConfigMap gpuledger-system/theirs has no key absent"),
        ({DEPLOYMENT: installed({})[DEPLOYMENT]}, "is not there"),
        (installed("{"), "while parsing"),
        (installed({"hami_config_file": "/no/such/file"}), "hami_config_file"),
        (installed({"hami_config_file": "configmap:kube-system/absent"}), "there is no ConfigMap kube-system/absent"),
    ],
    ids=[
        "forbidden",
        "no mapping",
        "unknown option",
        "no such key",
        "no ConfigMap",
        "no YAML",
        "no such file",
        "no such ConfigMap",
    ],
)
def test_settings_that_cannot_be_read_are_an_error_and_never_the_defaults(
    objects: dict[str, Json | Exception], says: str
) -> None:
    with pytest.raises(BadInput) as error:
        read(objects)
    assert says in str(error.value)
