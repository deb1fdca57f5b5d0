"""Facts: what a machine said and where it said it. No opinion, and nothing of ours is imported here."""
