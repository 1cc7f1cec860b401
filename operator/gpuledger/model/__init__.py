"""What the ledger talks about: cards, requests, shares, holders. Frozen values, standard library only."""
