"""How work is run: repeated until it is done, in turns, in steps."""
