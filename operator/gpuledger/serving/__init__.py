"""Ports: what every server of operator and agent listens by, so that no client takes what others need."""
