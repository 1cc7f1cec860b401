"""The names and annotations by which pods and nodes of several systems speak of cards."""
