"""Choice of the victims on a node for another pod."""
