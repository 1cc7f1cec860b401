"""Chaos on a node: `python -m node_chaos`, as root."""

import sys

from chaos.runner import Kind, main
from node_chaos.arena import NodeArena
from node_chaos.plan import CHAOS_S, plan
from node_chaos.run import run

SEEDS_PER_ARENA = 10

if __name__ == "__main__":
    sys.exit(main(Kind("node-chaos", NodeArena, plan, run, CHAOS_S, SEEDS_PER_ARENA)))
