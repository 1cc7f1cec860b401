"""Where state, decision and I/O meet."""
