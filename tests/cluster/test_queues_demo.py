"""`make demo-queues` tells its story to the end: it waits for each step itself, and fails where one does not come."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_of_queues_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "queues_demo.py")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "whose quota it had borrowed" in done.stdout
