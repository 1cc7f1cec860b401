"""The terms of the ledger: cards, requests, shares, holders. Frozen values, standard library only."""
