"""ResourceClaims (DRA): a second way to ask for shares of cards, entered into the same ledger."""
