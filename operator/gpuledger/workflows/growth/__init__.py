"""More nodes for pods that wait: how many, for whom, and the stand-ins by which autoscalers are asked."""
