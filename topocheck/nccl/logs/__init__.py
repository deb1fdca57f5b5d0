"""NCCL's debug log, read and compared."""
