"""NVIDIA's MPS on a node: the program that runs its daemons, and how the node agent sees them."""
