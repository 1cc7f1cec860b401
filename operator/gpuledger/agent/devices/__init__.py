"""The cards of this node: where they are read, which of them take pods, and the one thread that asks the driver."""
