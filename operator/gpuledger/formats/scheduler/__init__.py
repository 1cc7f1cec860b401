"""What kube-scheduler asks, and how it is configured."""
