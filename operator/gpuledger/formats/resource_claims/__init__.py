"""ResourceClaims and what belongs to them: devices, selectors, allocations."""
