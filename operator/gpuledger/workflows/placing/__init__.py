"""From kube-scheduler's question to the Binding."""
