"""The end of a pod's shares."""
