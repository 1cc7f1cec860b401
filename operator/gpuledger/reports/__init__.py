"""Reports on the ledger for people and scripts: plain data, the same for the command line, metrics and the page."""
