"""Kubernetes JSON into the model and back; no I/O, no clock."""
