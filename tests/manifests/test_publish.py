"""`make publish` with a real registry and Helm, and a program that answers as Docker does; tests/kind has Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from build_steps import BuildError
from gpuledger import __version__
from manifests.helm import NAMESPACE, Helm, own_homes
from manifests.publishing import a_registry, clean_checkout, commit_all, publish
from requirements import require

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
HOME = "https://code.example.com/team/gpuledger"

DOCKER = f"""#!/bin/sh
echo "$*" >> {{log}}
case "$1" in
  manifest)
    [ -e {{log}}.pushed ] && exit 0
    echo "no such manifest: $4" >&2; exit 1 ;;
  push)
    [ -e {{log}}.refuses ] && {{{{ echo "denied: access forbidden"; exit 1; }}}}
    touch {{log}}.pushed; echo "{__version__}: digest: {DIGEST} size: 1994" ;;
esac
"""


@pytest.fixture
def registry() -> Iterator[str]:
    try:
        with a_registry() as found:
            yield f"{found}/team"
    except BuildError as error:
        require("crane can't be built, so there is no registry", str(error))


class Place:
    """A clean checkout, and programs that publish from it."""

    def __init__(self, directory: Path, helm: Path) -> None:
        self.checkout = clean_checkout(directory)
        self.log = directory / "docker.log"
        programs = directory / "bin"
        programs.mkdir()
        (programs / "docker").write_text(DOCKER.format(log=self.log))
        (programs / "docker").chmod(0o755)
        (programs / "helm").symlink_to(helm)
        self.environment = {**os.environ, **own_homes(directory), "PATH": f"{programs}:{os.environ['PATH']}"}
        self._helm = helm

    def publish(self, *arguments: str) -> tuple[int, str]:
        return publish(self.checkout, *arguments, environment=self.environment)

    def helm(self, *arguments: str) -> str:
        argv = [str(self._helm), *arguments]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=True).stdout

    def asked(self) -> list[str]:
        """Return the commands that Docker was given."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def place(tmp_path: Path, helm: Helm) -> Place:
    if shutil.which("git") is None:
        pytest.skip("no git")
    return Place(tmp_path, helm.program)


def test_the_chart_in_the_registry_has_the_digest_that_the_registry_gave_the_image(place: Place, registry: str) -> None:
    status, said = place.publish(registry, "--home-url", f"{HOME}/", "--build-arg", "HAMI_CORE=without")
    assert status == 0, said
    asked, build, push = place.asked()
    image = f"{registry}/gpuledger:{__version__}"
    assert (asked, push) == (f"manifest inspect --insecure {image}", f"push {image}")
    assert re.fullmatch(
        rf"build --file manifests/Dockerfile --tag {image} --label org.opencontainers.image.version={__version__} "
        rf"--label org.opencontainers.image.revision=[0-9a-f]{{40}} --label org.opencontainers.image.source={HOME} "
        rf"--build-arg HAMI_CORE=without \.",
        build,
    )
    where = (f"oci://{registry}/charts/gpuledger", "--version", __version__, "--plain-http")
    installation = said.splitlines()[-1].split()
    assert installation[:3] == ["helm", "install", "gpuledger"]
    assert {*where, NAMESPACE} < set(installation)
    rendered = place.helm("template", *installation[2:], "--kube-version", "v1.36.3")  # install asks a cluster
    images = set(re.findall(r"image: (\S*gpuledger\S*)", rendered))
    assert images == {f"{image}@{DIGEST}"}
    head = yaml.safe_load(place.helm("show", "chart", *where))
    icon = f"{HOME}/raw/v{__version__}/manifests/chart/icon.svg"
    assert (head["home"], head["sources"], head["icon"]) == (HOME, [HOME], icon)
    assert f"| `image.repository` | `{registry}/gpuledger` |" in place.helm("show", "readme", *where)


def test_a_version_that_is_there_is_refused_and_nothing_is_built(place: Place, registry: str) -> None:
    assert place.publish(registry)[0] == 0
    before = len(place.asked())
    status, said = place.publish(registry)
    assert status == 1
    assert f"already has the image {registry}/gpuledger:{__version__} and the chart oci://{registry}" in said
    assert [line.split()[0] for line in place.asked()[before:]] == ["manifest"]
    place.log.with_name("docker.log.pushed").unlink()  # only the chart is there
    status, said = place.publish(registry)
    assert status == 1
    assert f"already has the chart oci://{registry}" in said


def test_what_the_registry_refuses_is_told_with_what_to_do(place: Place, registry: str) -> None:
    place.log.with_name("docker.log.refuses").touch()
    status, said = place.publish(registry)
    assert status == 1
    assert "access forbidden" in said
    assert said.splitlines()[-1].startswith("error: `docker push` failed (exit status 1). Nothing is published.")
    assert f"docker login {registry.partition('/')[0]}" in said


def test_a_registry_that_does_not_answer_is_not_one_without_the_version(place: Place) -> None:
    status, said = place.publish("127.0.0.1:1/team")
    assert status == 1
    assert "does not say whether it has this version" in said
    assert "connection refused" in said
    assert [line.split()[0] for line in place.asked()] == ["manifest"]


def test_a_dry_run_shows_the_commands_and_runs_none(place: Place) -> None:
    status, said = place.publish("registry.example.com/team", "--dry-run")
    assert status == 0, said
    assert place.asked() == []
    shown = [line.split()[1:3] for line in said.splitlines() if line.startswith("$ ")]
    assert shown == [
        *(["docker", "manifest"], ["helm", "show"], ["docker", "build"]),
        *(["docker", "push"], ["helm", "package"], ["helm", "push"]),
    ]
    assert "--plain-http" not in said
    assert "--insecure" not in said


def test_only_a_commit_is_published_and_only_one_of_one_version(place: Place) -> None:
    (place.checkout / "new").write_text("not committed")
    status, said = place.publish("registry.example.com/team", "--dry-run")
    assert status == 1
    assert "?? new" in said
    head = place.checkout / "manifests" / "chart" / "Chart.yaml"
    head.write_text(head.read_text().replace(f"\nversion: {__version__}", "\nversion: 9.9.9"))
    commit_all(place.checkout)
    status, said = place.publish("registry.example.com/team", "--dry-run")
    assert status == 1
    assert f"has version {__version__}, and manifests/chart/Chart.yaml version 9.9.9. Run `make generate`" in said
