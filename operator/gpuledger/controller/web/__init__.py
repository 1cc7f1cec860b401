"""The page, and who may see it."""
