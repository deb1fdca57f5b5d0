"""Text of nvidia-smi."""
