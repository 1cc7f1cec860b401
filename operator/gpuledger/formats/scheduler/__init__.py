"""Formats of kube-scheduler: extender requests, and its configuration."""
