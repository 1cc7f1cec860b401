"""HAMi-core's image, in the chart: it brings a library to the agent, and can do nothing else."""

import subprocess
from pathlib import Path

import pytest

from fakes.shared_library import a_library
from gpuledger.agent.isolation.hami_core import HamiCoreLibrary
from gpuledger.configuration.settings import Settings
from manifests.helm import Helm, Json, preset

AGENT = ("DaemonSet", "gpuledger-agent")
IMAGE = {"image": "registry.example:5000/hami@sha256:0123"}


def pod_of(objects: dict[tuple[str, str], Json]) -> Json:
    spec: Json = objects[AGENT]["spec"]["template"]["spec"]
    return spec


def brought(pod: Json) -> Json:
    (found,) = [each for each in pod["initContainers"] if each["name"] == "hami-core"]
    container: Json = found
    return container


def run(container: Json, root: Path, expected: int = 0) -> str:
    """Run the container's command over directories of a test."""
    script = container["args"][0].replace("/hami-core", str(root / "brought")).replace("/k8s-vgpu", str(root))
    done = subprocess.run([*container["command"], script], capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == (expected != 0), done.stderr
    return done.stderr


def test_without_another_image_the_agent_installs_what_its_own_has(helm: Helm) -> None:
    pod = pod_of(helm.objects())
    assert "initContainers" not in pod
    assert not {"hami-core-image", "no-token"} & {volume["name"] for volume in pod["volumes"]}


def test_the_preset_demands_what_the_agents_own_image_has(helm: Helm) -> None:
    objects = helm.objects(preset("limits-by-hami-core"))
    assert "isolation: hami-core" in objects["ConfigMap", "gpuledger-settings"]["data"]["settings.yaml"]
    assert "initContainers" not in pod_of(objects)


@pytest.mark.parametrize("looks_in", [Settings().hami_core_image_directory, "/elsewhere"])
def test_the_agent_sees_what_is_brought_where_it_looks_and_can_not_change_it(helm: Helm, looks_in: str) -> None:
    pod = pod_of(helm.objects(hamiCore=IMAGE, settings={"hami_core_image_directory": looks_in}))
    assert brought(pod)["image"] == IMAGE["image"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "hami-core-image"]
    assert (mount["mountPath"], mount["readOnly"]) == (looks_in, True)


def test_the_image_sees_neither_the_node_nor_the_agents_token(helm: Helm) -> None:
    pod = pod_of(helm.objects(hamiCore=IMAGE))
    container, volumes = brought(pod), {each["name"]: each for each in pod["volumes"]}
    assert all("emptyDir" in volumes[mount["name"]] for mount in container["volumeMounts"])
    assert "/var/run/secrets/kubernetes.io/serviceaccount" in [each["mountPath"] for each in container["volumeMounts"]]
    rights = container["securityContext"]
    assert (rights["runAsNonRoot"], rights["capabilities"]) == (True, {"drop": ["ALL"]})


def test_beside_simulated_cards_both_come(helm: Helm) -> None:
    pod = pod_of(helm.objects(hamiCore=IMAGE, agent={"simulatedCards": {"number": 2}}))
    assert [each["name"] for each in pod["initContainers"]] == ["simulated-cards", "hami-core"]


@pytest.mark.parametrize("name", ["libvgpu.so", "libvgpu.so.v2.9.0"])
def test_what_is_copied_is_what_the_agent_installs(helm: Helm, tmp_path: Path, name: str) -> None:
    container = brought(pod_of(helm.objects(hamiCore=IMAGE)))
    for directory in ("lib/nvidia", "brought", "node"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "lib/nvidia/ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so")
    (tmp_path / "lib/nvidia" / name).write_bytes(a_library())
    (tmp_path / "brought" / "libvgpu.so.v2.8.0").write_bytes(a_library()[:50])  # by a start before, which was cut off
    for _ in range(2):
        run(container, tmp_path)
    agent = HamiCoreLibrary(tmp_path / "node", tmp_path / "brought")
    agent.refresh()
    found = agent.found()
    assert found is not None, agent.why_not
    assert found.version == name.removeprefix("libvgpu.so").removeprefix(".")


def test_an_image_without_it_does_not_let_the_agent_start_and_says_why(helm: Helm, tmp_path: Path) -> None:
    container = brought(pod_of(helm.objects(hamiCore=IMAGE)))
    (tmp_path / "brought").mkdir()
    said = run(container, tmp_path, expected=1)
    assert "libvgpu.so" in said
