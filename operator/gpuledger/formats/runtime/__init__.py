"""What kubelet and container runtime read and write."""
