"""From facts to structure: the PCI tree, the NVLink graph, path classes and theoretical rates."""
