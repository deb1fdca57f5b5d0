"""Checks of limits, containers and shared memory."""
