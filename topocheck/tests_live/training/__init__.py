"""Training steps timed and predicted."""
