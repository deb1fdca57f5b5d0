"""The TOML policy: what is on, thresholds, and what a node must have."""
