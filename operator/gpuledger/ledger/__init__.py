"""The state in memory: which pod holds how much of which card, as the API server stores it, and what is on hold."""
