"""Checks of a run between nodes."""
