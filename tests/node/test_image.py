"""The container image, as `make image` builds it: the same each time, and nothing in it that is not listed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import pytest
from packaging.requirements import Requirement

from container_image import LOCK, MATERIALS, build_image, ensure_layers, missing_requirements
from requirements import require

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _can_build() -> None:
    require("no image can be built, for want of", next(iter(missing_requirements()), ""))


def test_the_same_sources_make_the_same_image(tmp_path: Path) -> None:
    digests = set()
    for name in ("first.tar", "second.tar"):
        build_image(tmp_path / name)
        with (tmp_path / name).open("rb") as file:
            digests.add(hashlib.file_digest(file, "sha256").hexdigest())
    assert len(digests) == 1


def test_the_image_has_the_command_that_the_documents_have_people_run_in_pods(tmp_path: Path) -> None:
    build_image(tmp_path / "image.tar")
    with _top_layer(tmp_path / "image.tar") as layer:
        assert layer.getmember("usr/local/bin/gpuledger").mode & 0o111 == 0o111


@contextlib.contextmanager
def _top_layer(file: Path) -> Iterator[tarfile.TarFile]:
    """Yield the uppermost layer of an image."""
    with tarfile.open(file) as image:
        top = json.load(_member(image, json.load(_member(image, "index.json"))["manifests"][0]))["layers"][-1]
        with tarfile.open(fileobj=_member(image, top)) as layer:
            yield layer


def _member(image: tarfile.TarFile, what: str | Mapping[str, str]) -> IO[bytes]:
    """Return a file of an image or layer, by its name or by what describes it."""
    name = what if isinstance(what, str) else f"blobs/{what['digest'].replace(':', '/')}"
    found = image.extractfile(name)
    assert found
    return found


def test_the_bill_of_materials_names_every_locked_wheel_and_the_python_that_runs_them(tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # takes seconds, in each process that collects tests

    hami_core = tmp_path / "libvgpu.so"
    hami_core.write_text("a library")
    text = build_image(tmp_path / "image.tar", hami_core=hami_core)
    with _top_layer(tmp_path / "image.tar") as layer:
        assert _member(layer, MATERIALS).read().decode() == text
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = {each["bom-ref"].partition("?")[0] for each in json.loads(text)["components"]}
    wheels = [Requirement(line.rstrip(" \\")) for line in LOCK.read_text().splitlines() if re.match(r"[a-z0-9]", line)]
    python = {"python_full_version": f"{ensure_layers()[2]}.0"}
    wanted = [wheel for wheel in wheels if wheel.marker is None or wheel.marker.evaluate(python)]
    locked = {f"pkg:pypi/{wheel.name}@{str(wheel.specifier).removeprefix('==')}" for wheel in wanted}
    assert locked <= found
    assert len(locked) > 20
    assert any(each.startswith("pkg:deb/debian/python3.") for each in found)
    assert "file:/hami-core/libvgpu.so" in found
