"""The commands of `gpuledger`, which are those of `kubectl gpuledger`, too."""
