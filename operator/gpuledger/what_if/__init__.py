"""`gpuledger simulate`: what-if questions, answered by the placement itself, without changing a cluster."""
