"""`gpuledger simulate`: traces, files and what-if questions, answered by the placement itself, without a cluster."""
