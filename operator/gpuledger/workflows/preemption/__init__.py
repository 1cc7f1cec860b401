"""Pods for which others have to leave."""
