"""What a container gets to know of its cards, and how."""
