"""The commands: what they run is imported when it is needed."""
