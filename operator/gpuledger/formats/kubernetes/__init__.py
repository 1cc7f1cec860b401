"""What Kubernetes has of its own: pods, nodes, gangs, workloads, quotas."""
