"""What `gpuledger top` shows."""
