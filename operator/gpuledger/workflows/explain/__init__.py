"""Why a pod, a gang or a workload waits, answered from the ledger of now."""
