"""Decisions: which cards, on which node, for which request. Pure functions of what the ledger shows."""
