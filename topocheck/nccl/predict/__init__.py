"""What NCCL will choose on a node: graph, paths, transports, bounds."""
