"""Bandwidth between nodes, pair by pair."""
