"""Helm, as the tests of the chart ask it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_control_plane import ensure_helm
from build_steps import BuildError
from chart import CHART, KUBERNETES, NAMESPACE, rendered
from requirements import require

Json = dict[str, Any]
PRESETS = sorted(path.stem for path in (CHART / "presets").glob("*.yaml"))
BEFORE_POLICIES = "v1.35.4"
"""The last minor version without MutatingAdmissionPolicy."""


class Helm:
    """Helm with our chart."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def texts(self, *flags: str, kubernetes: str = KUBERNETES, **values: object) -> dict[str, str]:
        """Return template -> its text. Values are set by the top of their paths: operator={"replicas": 3}."""
        return rendered(self.program, *self.flags(values), *flags, kubernetes=kubernetes)

    def objects(self, *flags: str, kubernetes: str = KUBERNETES, **values: object) -> dict[tuple[str, str], Json]:
        """Return (kind, name) -> object."""
        texts = self.texts(*flags, kubernetes=kubernetes, **values).values()
        every = [each for text in texts for each in yaml.load_all(text, yaml.CSafeLoader)]
        found = {(each["kind"], each["metadata"]["name"]): each for each in every}
        assert len(found) == len(every)  # no two are of the same name
        return found

    def refusal(self, *flags: str, kubernetes: str = KUBERNETES, **values: object) -> str:
        """Return what Helm says of values that it does not take."""
        with pytest.raises(subprocess.CalledProcessError) as caught:
            self.texts(*flags, kubernetes=kubernetes, **values)
        return str(caught.value.stderr)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run Helm; return its status and all that it says."""
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    @staticmethod
    def flags(values: Mapping[str, object]) -> list[str]:
        """Return the flags that set values."""
        return [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]


def own_homes(directory: Path) -> dict[str, str]:
    """Return variables with which Helm leaves the user's own directories alone."""
    return {f"HELM_{kind}_HOME": str(directory / "helm-home") for kind in ("CACHE", "CONFIG", "DATA")}


def preset(name: str) -> str:
    """Return the flag that takes a preset's values."""
    return f"--values={CHART / 'presets' / name}.yaml"


def the_helm() -> Helm:
    """Return Helm, built if it is missing. Where that can't be done, the test is skipped; with CI=true it fails."""
    try:
        return Helm(ensure_helm())
    except BuildError as error:
        require("helm can't be built, so nobody renders the chart", str(error))
        raise


__all__ = [
    "BEFORE_POLICIES",
    "CHART",
    "KUBERNETES",
    "NAMESPACE",
    "PRESETS",
    "Helm",
    "Json",
    "own_homes",
    "preset",
    "the_helm",
]
