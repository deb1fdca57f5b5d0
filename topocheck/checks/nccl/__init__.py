"""Checks of NCCL's settings and network."""
