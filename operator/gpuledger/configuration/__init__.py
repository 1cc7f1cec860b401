"""Settings, and the dialects and names that follow from them."""
