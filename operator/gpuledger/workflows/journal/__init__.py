"""The only way into the ledger: writes of cards, one at a time for each."""
