"""Admission: checks and defaults before a pod is stored."""
