"""What containers get: from a start that the kubelet asks for to the files that it finds."""
