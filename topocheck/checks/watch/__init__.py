"""Checks of a machine over time."""
