"""The operator's process: Kopf's watches and the scheduler extender, on one event loop."""
