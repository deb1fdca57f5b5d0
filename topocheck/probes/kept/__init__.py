"""What a snapshot keeps, and nothing else."""
