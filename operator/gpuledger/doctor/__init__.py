"""Whether a cluster has what gpuledger needs: what was read of it, and what that shows to be wrong."""
