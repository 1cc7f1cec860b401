"""Annotations that the operator writes to pods. Their values say nothing: that they change is the point."""

WOKEN_ANNOTATION = "gpuledger.dev/woken"
"""On a pod for which room was found while it slept: kube-scheduler tries again what has changed."""

RELEASED_ANNOTATION = "gpuledger.dev/released"
"""On a pod whose shares were taken back: a Binding that names its resourceVersion of before fails."""
