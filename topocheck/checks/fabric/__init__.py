"""Checks of the network between nodes, as its dumps describe it."""
