"""What a test does where the machine lacks something that it needs."""

import os

import pytest


def require(what_for: str, missing: str) -> None:
    """Skip the test if something is missing; in the pipeline (CI=true), where a green run means that it ran, fail it.

    `missing` says what, and how to get it; empty: nothing is. `what_for` says what can't be done without it.
    """
    if not missing:
        return
    reason = f"{what_for}: {missing}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
