"""Delivery of cards to containers."""
