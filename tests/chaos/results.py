"""What runs have shown, one JSON line for each, and which seeds need not be run again."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gpuledger
from chaos.outcome import Outcome
from installation import REPOSITORY

Json = dict[str, Any]

PASSED, FAILED, VOID = "passed", "failed", "void"
"""Verdicts. A run is void when the test itself broke down, or the product was changed meanwhile."""

VERSION_LENGTH = 12
TEXT_LENGTH = 1000


def results_of(target: str) -> Path:
    """Return where a target of `make` keeps its results."""
    return REPOSITORY / "build" / target / "results.jsonl"


def version() -> str:
    """Return a fingerprint of the product: the sources that run, and the CRD."""
    package = Path(gpuledger.__file__).parent
    found = hashlib.sha256()
    for file in [*sorted(package.rglob("*.py")), *sorted((REPOSITORY / "crds").glob("*.yaml"))]:
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()[:VERSION_LENGTH]


def repeat_command(seed: int, target: str = "chaos") -> str:
    """Return what repeats a run."""
    return f"make {target} SEED={seed} MINUTES=0 AGAIN=1"


def record(outcome: Outcome[Any], its_version: str, verdict: str, trace: Path | None = None) -> Json:
    """Return the line for a run."""
    faults: Counter[str] = Counter()
    for kind, count in outcome.faults.items():
        faults[kind.split(": ")[1].split("(")[0]] += count
    return {
        "seed": outcome.plan.seed,
        "version": its_version,
        "commit": _commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": verdict,
        "seconds": outcome.plan.seconds,
        "chaos_s": round(outcome.chaos_s, 1),
        "rest_s": round(outcome.rest_s, 1),
        "counts": dict(sorted(outcome.counts.items())),
        "faults": dict(sorted(faults.items())),
        "checks": outcome.checks,
        "findings": [{"rule": found.rule, "text": found.text[:TEXT_LENGTH]} for found in outcome.findings],
        "trace": str(trace) if trace else None,
    }


def append(results: Path, line: Mapping[str, Any]) -> None:
    """Add a line to the file of results."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(results: Path) -> list[Json]:
    """Return all lines, oldest first. One that a killed run has left unfinished is skipped."""
    lines: list[Json] = []
    for line in results.read_text().splitlines() if results.exists() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


def judged(results: Path, its_version: str, seconds: float) -> set[int]:
    """Return the seeds that have a verdict for this version of the product, from runs of this length."""
    return {
        line["seed"]
        for line in read(results)
        if line["version"] == its_version and line["seconds"] == seconds and line["verdict"] in (PASSED, FAILED)
    }


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
