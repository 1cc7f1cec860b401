"""The agent, which looks more often for pods that are gone: `impatient_agent.py agent ...`. Run in a node's box.

Every half minute, as it does by itself, would be about once in a run: then nobody would see what it removes too early.
"""

from gpuledger.agent import agent as startup
from gpuledger.command_line.program import main
from node.limiting_agent import use_the_groups_there_are

LOOK_INTERVAL_S = 1.5


def be_impatient() -> None:
    """Have the agent of this process look more often, and limit the groups that this machine has."""
    startup.LOOK_INTERVAL_S = LOOK_INTERVAL_S
    use_the_groups_there_are()


if __name__ == "__main__":
    be_impatient()
    main()
