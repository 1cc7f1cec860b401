"""What is not as it should be is found, and put in order."""
