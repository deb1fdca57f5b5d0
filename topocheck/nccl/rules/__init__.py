"""NCCL's settings, their values, and its versions."""
