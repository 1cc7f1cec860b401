"""Everything between the agent and its kubelet."""
