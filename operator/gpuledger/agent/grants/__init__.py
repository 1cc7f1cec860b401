"""Grants of cards to containers: from a start that the kubelet asks for to the files on the node."""
