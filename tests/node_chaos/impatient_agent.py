"""The agent, which looks more often for pods that are gone: `impatient_agent.py agent ...`. Run in a node's box.

Every half minute, as it does by itself, would be about once in a run: then nobody would see what it removes too early.
"""

from gpuledger.agent import startup
from gpuledger.command_line.program import main

LOOK_INTERVAL_S = 1.5

if __name__ == "__main__":
    startup.LOOK_INTERVAL_S = LOOK_INTERVAL_S
    main()
