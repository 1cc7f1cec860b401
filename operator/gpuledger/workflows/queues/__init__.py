"""Kueue: jobs are admitted when their pods have cards, which are reserved until the pods come."""
