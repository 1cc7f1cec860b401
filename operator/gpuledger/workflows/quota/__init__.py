"""What the pods of a namespace may have together: read from ResourceQuotas, and kept to."""
