"""Kubernetes' own objects: pods, nodes, gangs, workloads, quotas."""
