"""From what nodes report to cards, and what keeps a node from taking pods."""
