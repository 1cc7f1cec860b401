"""Pods that wait: in which order they get room, and why they wait."""
