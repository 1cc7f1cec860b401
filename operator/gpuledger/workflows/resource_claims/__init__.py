"""Pods' ResourceClaims: what they ask for, what is written into them, and when their shares end."""
