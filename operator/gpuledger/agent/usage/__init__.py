"""What containers use of their cards, and the monitor by which runtime priority has an effect."""
