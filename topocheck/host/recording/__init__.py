"""Snapshots: written, read, anonymized, exported."""
