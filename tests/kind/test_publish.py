"""`make publish` with Docker, Helm and a registry on this machine; no cluster is needed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger import __version__
from kind.cluster import KindCluster
from manifests.helm import KUBERNETES, NAMESPACE, own_homes
from manifests.publishing import a_registry, clean_checkout, publish

MATERIALS = "/usr/share/doc/gpuledger/gpuledger.cdx.json"


class Published:
    """A version in a registry, and what `make publish` has printed."""

    def __init__(self, lab: KindCluster, registry: str, directory: Path) -> None:
        self._environment = {**lab.docker.environment, **own_homes(directory)}
        self.registry = registry
        self.image = f"{registry}/gpuledger:{__version__}"
        self.checkout = clean_checkout(directory)
        self.status, self.said = self.again()

    def again(self) -> tuple[int, str]:
        """Publish; return the exit status, and what is printed."""
        build = ("--build-arg", "HAMI_CORE=without")
        return publish(self.checkout, self.registry, *build, environment=self._environment)

    def run(self, *argv: str) -> str:
        """Run a command with this Docker; return what it prints."""
        done = subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def images(self) -> set[str]:
        """Return the ids of what Docker has of it."""
        return set(self.run("docker", "images", "--quiet", "--no-trunc", f"{self.registry}/gpuledger").split())


@pytest.fixture(scope="module")
def published(lab: KindCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """Return what was published into a registry that had nothing."""
    with a_registry() as host:
        found = Published(lab, f"{host}/team", tmp_path_factory.mktemp("publish"))
        try:
            assert found.status == 0, found.said
            yield found
        finally:
            for image in found.images():
                found.run("docker", "rmi", "--force", image)


def test_the_chart_has_the_digest_by_which_docker_pulls_the_image(published: Published) -> None:
    published.run("docker", "rmi", published.image)
    pulled = re.findall(r"^Digest: (sha256:\w+)$", published.run("docker", "pull", published.image), re.MULTILINE)
    chart = (f"oci://{published.registry}/charts/gpuledger", "--version", __version__, "--plain-http")
    place = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES)
    rendered = published.run("helm", "template", "gpuledger", *chart, *place)
    assert set(re.findall(r"image: (\S*/gpuledger:\S+)", rendered)) == {
        f"{published.image}@{digest}" for digest in pulled
    }
    assert len(pulled) == 1


def test_the_image_that_the_chart_names_runs_and_has_its_bill_of_materials(published: Published) -> None:
    digest = re.findall(r"@(sha256:\w+)$", published.said, re.MULTILINE)[0]
    named = f"{published.image}@{digest}"
    assert "kind: CustomResourceDefinition" in published.run("docker", "run", "--rm", named, "crd")
    text = published.run("docker", "run", "--rm", "--entrypoint", "cat", named, MATERIALS)
    found = {each["name"] for each in json.loads(text)["components"]}
    assert {"kopf", "numpy", "libc6", "debian"} <= found
    installed = published.run(
        "docker", "run", "--rm", "--entrypoint", "ls", named, "/opt/gpuledger/lib/python3.13/site-packages"
    )
    wheels = {line.partition("-")[0].lower() for line in installed.split() if line.endswith(".dist-info")}
    assert wheels <= {name.replace("-", "_").lower() for name in found}


def test_the_same_version_is_refused_a_second_time(published: Published) -> None:
    before = published.images()
    status, said = published.again()
    assert status == 1
    assert f"The registry already has the image {published.image}" in said
    assert published.images() == before
