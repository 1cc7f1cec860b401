"""Prometheus' own promtool: what it says of metrics, rules and queries."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "manifests" / "monitoring"


def asked(promtool: Path, *arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """Run promtool; return its status and all that it says."""
    done = subprocess.run([promtool, *arguments], input=stdin, capture_output=True, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()
