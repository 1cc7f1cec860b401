"""The node agent, and its simulation for clusters without GPUs."""
