"""Running work: repeated until it is done, in turns, in steps."""
