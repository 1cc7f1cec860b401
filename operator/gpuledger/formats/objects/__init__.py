"""Kubernetes' own objects."""
