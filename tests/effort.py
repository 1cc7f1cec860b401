"""How much a run of the tests tries, and from which seed.

`make test` tries a little of everything, and the same in each run: what fails was changed. `make test-long` tries much
more, from a seed that it prints first; `make test SEED=12345` makes the choices of another seed, or the same again. The
environment carries both to the processes that share the work.
"""

import os
import random
import secrets

SEED_VARIABLE, LONG_VARIABLE = "GPULEDGER_TEST_SEED", "GPULEDGER_TEST_LONG"
LONG = os.environ.get(LONG_VARIABLE) == "1"
RUN_SEED = int(os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(2**32) if LONG else 1)))


def times(short: int, long: int) -> int:
    """Return how often something is tried: `short` by `make test`, `long` by `make test-long`."""
    return long if LONG else short


def seeds_for(purpose: str, count: int) -> list[int]:
    """Return seeds that follow from the run's, other ones for each purpose."""
    rng = random.Random(f"{RUN_SEED} {purpose}")  # noqa: S311 - no secret; text seeds do not depend on PYTHONHASHSEED
    return [rng.randrange(2**32) for _ in range(count)]
