"""What a placement costs the pods that are still to come."""
