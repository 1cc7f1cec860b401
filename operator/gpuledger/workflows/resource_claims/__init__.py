"""Pods' ResourceClaims: their requests, their allocations, and the ends of their shares."""
