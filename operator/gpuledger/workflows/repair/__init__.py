"""Finding and repairing differences between ledger and cluster."""
