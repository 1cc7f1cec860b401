"""Chaos around a control plane: `python -m chaos`."""

import sys

from chaos.arena import Arena
from chaos.plan import CHAOS_S, plan
from chaos.run import run
from chaos.runner import Kind, main

SEEDS_PER_ARENA = 20
"""Seeds on one control plane: its etcd grows."""

if __name__ == "__main__":
    sys.exit(main(Kind("chaos", Arena, plan, run, CHAOS_S, SEEDS_PER_ARENA)))
