"""Checks of NUMA nodes and affinity."""
