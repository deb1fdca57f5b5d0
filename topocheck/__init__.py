"""topocheck: how GPUs, NICs and CPUs of a node are wired, and why a wire is slow."""

__version__ = "0.2.0"
