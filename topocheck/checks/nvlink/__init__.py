"""Checks of NVLink and its fabric."""
