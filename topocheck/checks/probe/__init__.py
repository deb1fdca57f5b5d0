"""Checks of topocheck's own answers."""
