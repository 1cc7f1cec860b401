"""Formats of kubelet and container runtime."""
