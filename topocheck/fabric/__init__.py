"""The network between nodes: dumps of it read, and made into one graph."""
