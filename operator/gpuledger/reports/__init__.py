"""What people and scripts are shown of the ledger: plain data, the same for the command line, metrics and the page."""
