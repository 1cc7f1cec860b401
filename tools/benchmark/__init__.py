"""What `make bench` measures, and how. docs/performance.md says what each figure means."""

import sys
from pathlib import Path

# The tests have a proxy that slows writes down, and an operator without a cluster.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
