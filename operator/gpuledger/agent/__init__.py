"""What runs on nodes, and what plays its part where there are no GPUs."""
