"""Who has to leave a node so that another pod fits there."""
