"""Decisions: which cards, on which node, for which request. Pure functions of the ledger's state."""
