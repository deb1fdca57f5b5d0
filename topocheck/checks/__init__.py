"""The registry of checks and one file per area."""
