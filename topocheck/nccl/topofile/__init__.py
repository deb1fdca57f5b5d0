"""NCCL's topology file: read, written, compared."""
