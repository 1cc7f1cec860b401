"""The command kubectl-gpuledger: who holds which card, and why a pod waits."""
