"""How much a run of the tests tries, and from which seed.

`make test` makes the same choices in each run: what fails was changed. `make check` tries less, so that one can wait
for it. `make test-all` runs all tests, and each tries more, from a seed that it prints first. With `make test
SEED=12345`, the choices are those of another seed, or the same again. The environment carries both to the processes
that share the work.
"""

import os
import random
import secrets

SEED_VARIABLE, EFFORT_VARIABLE = "GPULEDGER_TEST_SEED", "GPULEDGER_TEST_EFFORT"
EFFORT = os.environ.get(EFFORT_VARIABLE, "test")
"""The target of the Makefile: check, test or test-all."""

LEFT_OUT = {"check": ("thorough", "long"), "test": ("long",), "test-all": ()}[EFFORT]
"""Marks of tests that do not run."""

RUN_SEED = int(os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(2**32) if EFFORT == "test-all" else 1)))


def times(short: int, long: int, check: int | None = None) -> int:
    """Return how often something is tried: `short` by `make test`, `long` by `make test-all`.

    By `make check` as often as by `make test`, if nothing else is said.
    """
    return {"check": short if check is None else check, "test": short, "test-all": long}[EFFORT]


def seeds_for(purpose: str, count: int) -> list[int]:
    """Return seeds that follow from the run's, other ones for each purpose."""
    rng = random.Random(f"{RUN_SEED} {purpose}")  # noqa: S311 - no secret; text seeds do not depend on PYTHONHASHSEED
    return [rng.randrange(2**32) for _ in range(count)]
