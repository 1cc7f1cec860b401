"""How much a run of the tests tries, and from which seed.

`make test` tries a little of everything, `make test-long` much more. Both start from a fresh seed, which the run prints
first: `make test SEED=12345` repeats it. The environment carries both to the processes that share the work.
"""

import os
import random
import secrets

SEED_VARIABLE, LONG_VARIABLE = "GPULEDGER_TEST_SEED", "GPULEDGER_TEST_LONG"
RUN_SEED = int(os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(2**32))))
LONG = os.environ.get(LONG_VARIABLE) == "1"


def times(short: int, long: int) -> int:
    """Return how often something is tried: `short` by `make test`, `long` by `make test-long`."""
    return long if LONG else short


def fresh_seeds(purpose: str, count: int) -> list[int]:
    """Return seeds that no run before has had, and that a run with the same RUN_SEED has again."""
    rng = random.Random(f"{RUN_SEED} {purpose}")  # noqa: S311 - no secret; text seeds do not depend on PYTHONHASHSEED
    return [rng.randrange(2**32) for _ in range(count)]
