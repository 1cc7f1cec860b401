"""What is checked and added before a pod is stored."""
