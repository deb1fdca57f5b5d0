"""Copies between GPUs and host memory, measured in child processes."""
