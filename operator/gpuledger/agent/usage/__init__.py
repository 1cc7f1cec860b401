"""Use of cards by containers, and the monitor by which runtime priority has an effect."""
