"""Collectives on one or many nodes, a rank in each process."""
