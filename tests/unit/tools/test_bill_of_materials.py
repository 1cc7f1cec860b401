"""The bill of materials says what an image has, in a form that others read, and the same of the same image."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from packageurl import PackageURL

from bill_of_materials import bill_of_materials, files_below, files_of_layers

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tools" / "bill_of_materials.py"

INSTALLED = """\
Package: libstdc++6
Status: install ok installed
Architecture: amd64
Source: gcc-14
Version: 14.2.0-19
Description: GNU Standard C++ Library v3
 This package contains it.

Package: bash
Status: install ok installed
Architecture: amd64
Source: bash (5.2.37-2)
Version: 1:5.2.37-2+b10

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""

IMAGE = {
    "usr/lib/os-release": 'ID=debian\nVERSION_ID="13"\n',
    "var/lib/dpkg/status": INSTALLED,
    "var/lib/dpkg/status.d/dash": "Package: dash\nVersion: 0.5.12-12\nArchitecture: amd64\n",
    "usr/local/include/python3.13/patchlevel.h": '#define PY_MAJOR_VERSION 3\n#define PY_VERSION      "3.13.7"\n',
    "usr/local/lib/python3.13/site-packages/pip-25.2.dist-info/METADATA": "Name: pip\nVersion: 25.2\n\nThe installer.",
    "opt/gpuledger/lib/python3.13/site-packages/PyYAML-6.dist-info/METADATA": "Name: PyYAML\nVersion: 6.0.3\n",
    "opt/gpuledger/lib/python3.13/site-packages/yaml/METADATA": "Name: none\nVersion: 1\n",
    "hami-core/libvgpu.so": "a library",
    "srv/hami-core/other": "not copied",
}
REFERENCES = [
    "file:/hami-core/libvgpu.so",
    "os:debian",
    "pkg:deb/debian/bash@1:5.2.37-2%2Bb10?arch=amd64&distro=debian-13&upstream=bash%405.2.37-2",
    "pkg:deb/debian/dash@0.5.12-12?arch=amd64&distro=debian-13",
    "pkg:deb/debian/libstdc%2B%2B6@14.2.0-19?arch=amd64&distro=debian-13&upstream=gcc-14",
    "pkg:generic/python@3.13.7",
    "pkg:pypi/pip@25.2",
    "pkg:pypi/pyyaml@6.0.3",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with an image's files."""
    for name, text in IMAGE.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    return tmp_path / "root"


def components(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["components"]
    return found


def test_all_packages_are_in_it_and_what_is_only_half_one_is_not(root: Path) -> None:
    text = bill_of_materials("gpuledger", "1.0", files_below(root))
    assert [each["bom-ref"] for each in components(text)] == REFERENCES


def test_it_is_the_same_from_a_directory_and_from_layers_in_any_order(root: Path, tmp_path: Path) -> None:
    layers = [tmp_path / "lower.tar", tmp_path / "upper.tar"]
    names = list(reversed(IMAGE))
    for layer, part in zip(layers, (names[:4], names[4:]), strict=True):
        with tarfile.open(layer, "w") as tar:
            for name in part:
                entry = tarfile.TarInfo(name)
                entry.size = len(IMAGE[name])
                tar.addfile(entry, io.BytesIO(IMAGE[name].encode()))
    texts = {bill_of_materials("gpuledger", "1.0", files) for files in (files_below(root), files_of_layers(layers))}
    assert len(texts) == 1
    assert "time" not in texts.pop()


def test_another_content_has_another_serial_number(root: Path) -> None:
    numbers = set()
    for version in ("6.0.3", "6.0.4"):
        metadata = root / "opt/gpuledger/lib/python3.13/site-packages/PyYAML-6.dist-info/METADATA"
        metadata.write_text(f"Name: PyYAML\nVersion: {version}\n")
        numbers.add(json.loads(bill_of_materials("gpuledger", "1.0", files_below(root)))["serialNumber"])
    assert len(numbers) == 2


def test_its_urls_are_as_others_write_them(root: Path) -> None:
    found = components(bill_of_materials("gpuledger", "1.0", files_below(root)))
    urls = [each["purl"] for each in found if "purl" in each]
    assert len(urls) == 6
    assert [PackageURL.from_string(url).to_string() for url in urls] == urls


def test_it_is_valid(root: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # takes seconds, in each process that collects tests

    text = bill_of_materials("gpuledger", "1.0", files_below(root))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_build_of_an_image_needs_nothing_but_python_for_it(root: Path) -> None:
    argv = [sys.executable, "-I", "-S", str(PROGRAM), "gpuledger", "1.0", str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == bill_of_materials("gpuledger", "1.0", files_below(root))
    done = subprocess.run([*argv[:-1], str(root / "nowhere")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "directory" in done.stderr
