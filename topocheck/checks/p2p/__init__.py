"""Checks of GPUDirect P2P."""
