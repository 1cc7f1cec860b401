"""promtool is built from source when it is first wanted. Where that can't be done, tests are skipped, with the reason.

In the pipeline (CI=true) that is a failure.
"""

from pathlib import Path

import pytest

from build_control_plane import ensure_promtool
from build_steps import BuildError
from requirements import require


@pytest.fixture(scope="package")
def promtool() -> Path:
    """Return the program."""
    try:
        return ensure_promtool()
    except BuildError as error:
        require("promtool can't be built, so nothing judges metrics and rules", str(error))
        raise
