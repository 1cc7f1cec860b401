"""Ways to keep the shares of a card apart: what each needs on the node, and what it does to containers."""
