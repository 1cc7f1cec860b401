"""The checks: facts in, findings out. No I/O, no clock."""
