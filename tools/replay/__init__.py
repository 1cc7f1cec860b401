"""Replays a trace of a GPU cluster by the operator's own ledger and placement: which policy wastes least.

docs/replay.md says how to run it, and what it prints.
"""
