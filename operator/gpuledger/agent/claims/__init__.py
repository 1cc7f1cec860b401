"""ResourceClaims on a node: what the ledger gives them, and how it comes to the containers that name them."""
