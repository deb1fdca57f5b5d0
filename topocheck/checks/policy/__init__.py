"""Checks of what a policy expects."""
