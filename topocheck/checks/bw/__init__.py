"""Checks of a bandwidth run."""
