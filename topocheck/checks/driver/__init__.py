"""Checks of the driver."""
