"""Limits that the driver keeps: set when a container starts, and removed after its last process."""
