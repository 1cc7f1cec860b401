"""gpuledger: share GPUs between Kubernetes pods, and keep a ledger of every share."""

__version__ = "0.1.0"
