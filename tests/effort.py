"""How much a run of the tests tries, and from which seed.

`make test` tries a little of everything, `make test-long` much more, and `make check` so little that one can wait for
it. Each starts from a fresh seed, which the run prints first, and `make test SEED=12345` repeats it. The environment
carries both to the processes that share the work.
"""

import os
import random
import secrets

SEED_VARIABLE, EFFORT_VARIABLE = "GPULEDGER_TEST_SEED", "GPULEDGER_TEST_EFFORT"
RUN_SEED = int(os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(2**32))))
EFFORT = os.environ.get(EFFORT_VARIABLE, "test")
"""The target of the Makefile: check, test or test-long."""

LEFT_OUT = {"check": ("thorough", "long"), "test": ("long",), "test-long": ()}[EFFORT]
"""Marks of tests that do not run."""


def times(short: int, long: int, check: int | None = None) -> int:
    """Return how often something is tried: `short` by `make test`, `long` by `make test-long`.

    By `make check` as often as by `make test`, if nothing else is said.
    """
    return {"check": short if check is None else check, "test": short, "test-long": long}[EFFORT]


def fresh_seeds(purpose: str, count: int) -> list[int]:
    """Return seeds that no run before has had, and that a run with the same RUN_SEED has again."""
    rng = random.Random(f"{RUN_SEED} {purpose}")  # noqa: S311 - no secret; text seeds do not depend on PYTHONHASHSEED
    return [rng.randrange(2**32) for _ in range(count)]
